"""The last lines of a log, for an end without a line that is marked as an error.

Scripts, launchers and platforms often say why in plain words (`Host key verification failed.`),
and such words stand in many lines that mean nothing. So they count only near the end, only where
no step followed, and only to be quoted: they never name a cause.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agent.diagnosis.errors.parsed_error import LogLevel
from agent.diagnosis.errors.process_output import is_closing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.diagnosis.errors.prefixes import PrintedLine

MOST_KEPT = 60  # ordinary lines of a log
_MOST_READ = 20  # of them, from the end on
_SEARCHED = 400  # characters of a line
_COMPLAINS = re.compile(
    r"\b(?:errors?|fail(?:s|ed|ure)?|fatal|exception|panic|crash(?:ed)?|abort(?:ed|ing)?"
    r"|cannot|can't|can not|could not|couldn't|unable|does not|doesn't|do not|don't|did not|didn't"
    r"|is not|isn't|are not|aren't|not (?:a|an|in|found|enough|available|allowed|permitted"
    r"|supported|installed|recogni[sz]ed|set|valid|specified|defined|authori[sz]ed)"
    r"|no (?:such|space|room|route|module|valid|available|matching|devices?|gpus?|permission)"
    r"|unknown|invalid|illegal|incorrect|wrong|bad|broken|corrupt(?:ed)?|malformed|unexpected"
    r"|unsupported|unrecogni[sz]ed|incompatible|mismatch(?:ed)?|conflicts?|undefined|unbound"
    r"|missing|lacks?|requires?|required|must|denied|refused|rejected|forbidden|unauthori[sz]ed"
    r"|expired|revoked|exceed(?:s|ed)?|exhausted|insufficient|too (?:large|long|many|few|small|big"
    r"|old|new|short)|out of|quota|limit|full|stale|busy|unreachable|unavailable|disconnected"
    r"|timed? ?-?out|timeout|closed|reset|lost|dead|died|killed|terminat\w{2,4}|evict\w{0,4}"
    r"|reclaim\w{0,4}|shut(?:ting)? ?down"
    r"|no (?:heartbeat|response|answer|reply)"
    r"|preempt(?:ed|ion)?|signal|sig(?:term|kill|int|hup|usr[12])|interrupted|cancell?ed|stopped"
    r"|unhealthy|not ready|already"
    r"|exit(?:ed)? (?:with )?(?:exit )?(?:code|status) [1-9]\d{0,2})\b"
    r"|错误|失败|异常|无法|不能|找不到|不存在|超时|拒绝|不足|エラー|失敗|오류|실패|ошибк|не удалось"
    r"|\b(?:[Ff]ehler|konnte nicht|nicht gefunden|fehlgeschlagen|erreur|impossible|échec"
    r"|introuvable|errore|impossibile|no se pudo|fallo|falló|erro|falhou)\b",
    re.IGNORECASE,
)
"""Words of somebody who says why a program ended."""
_SAYS_NOTHING = re.compile(
    r"\b(?:no|0|without|zero) (?:errors?|failures?|warnings?|failed)\b|\b(?:errors?|failed|fails)"
    r"[=:] ?(?:0\b|none\b|false\b)|\bdeprecat|\b\w*Warning: |\d%\||\bit/s\b|\bs/it\b"
    r"|^\W*\[WARN(?:ING)?\]|\bwill be ignored\b"
    r"|^Error executing job with overrides"
    r"|^\s*(?:usage|options|positional arguments|optional arguments):|^\s{2,}-{1,2}\w"
    r"|^\W*(?:if|when|to fix|note|tip|hint|see|for example|you (?:may|can|might)|consider|try)\b",
    re.IGNORECASE,
)


class LastLine(NamedTuple):
    """One of the last lines of a log that are no part of an error."""

    number: int
    line: PrintedLine
    stamp: str  # the last time that the log stated up to it


def telling_line(lines: Sequence[LastLine], first: int, end: int | None) -> LastLine | None:
    """Return the line that may say why a program ended: between two numbers, near the second.

    The last line with such words counts, and of several that follow each other the first one.
    """
    within = [one for one in lines if one.number > first and (end is None or one.number < end)]
    near = [one for one in within if not is_closing(one.line.body)][-_MOST_READ:]
    for levels in (
        (LogLevel.UNSTATED, LogLevel.FATAL),
        (LogLevel.WARNING, LogLevel.WARNING),
        (LogLevel.INFO, LogLevel.INFO),
    ):
        complaints = [at for at, one in enumerate(near) if _complains(one.line, *levels)]
        if not complaints:
            continue
        at = complaints[-1]
        while at - 1 in complaints and near[at - 1].line.source == near[at].line.source:
            at -= 1
        return near[at]
    return None


def _complains(line: PrintedLine, least: LogLevel, most: LogLevel) -> bool:
    if not least <= line.level <= most:
        return False
    text = line.body[:_SEARCHED]
    return _COMPLAINS.search(text) is not None and _SAYS_NOTHING.search(text) is None
