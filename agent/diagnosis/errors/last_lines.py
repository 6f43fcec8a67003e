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
from agent.diagnosis.errors.roles import has_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.diagnosis.errors.prefixes import PrintedLine

MOST_KEPT = 60  # ordinary lines of a log
_MOST_READ = 20  # of them, from the end on
_SEARCHED = 400  # characters of a line
_BETWEEN = 8  # lines from one complaint to the next one of the same process
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
"""Words of somebody who says why a program ended, or what it lacks."""
_SAYS_AN_END = re.compile(
    r"\b(?:fatal|panic|crash(?:ed)?|abort(?:ed|ing)?|died|dead|killed|killing|terminat(?:ed|ing)"
    r"|stopp(?:ed|ing)|shut(?:ting)? ?down|leaving|quit(?:ting)?|giving up|core dumped"
    r"|exit(?:ed|ing)?(?: (?:with|code|status))?(?: [\w()]{1,20}){0,2} [1-9]\d{0,2}"
    r"|signal|sig(?:term|kill|int|hup|usr[12])|interrupted|cancell?ed|preempt(?:ed|ion)?"
    r"|evict\w{0,4}|reclaim\w{0,4}|(?:time|memory) limit|no (?:heartbeat|response|answer|reply)"
    r"|status [1-9]\d{0,2})\b|\b(?:failed|denied|refused|exceeded|expired)\b[^:]{0,24}$",
    re.IGNORECASE,
)
"""Words of somebody who says that a program ended: such a line counts before other ones."""
_QUESTION = re.compile(r"[^.:!?]{1,200}\?")
_SAYS_NOTHING = re.compile(
    r"\b(?:no|0|without|zero) (?:errors?|failures?|warnings?|failed)\b|\b(?:errors?|failed|fails)"
    r"[=:] ?(?:0\b|none\b|false\b)|\bdeprecat|\b\w*Warning: |\d%\||\bit/s\b|\bs/it\b"
    r"|^\W*\[WARN(?:ING)?\]|\bwill be ignored\b|^NCCL (?:INFO|TRACE)\b"
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

    One that says that it ended counts before another one, and what states the level of a warning
    or of information only with such words. The last one counts, and of several together the first.
    """
    within = [one for one in lines if one.number > first and (end is None or one.number < end)]
    near = [one for one in within if not is_closing(one.line.body)][-_MOST_READ:]
    said = [at for at, one in enumerate(near) if _complains(one.line)]
    loud = [at for at in said if near[at].line.level >= LogLevel.UNSTATED]
    ends = [at for at in said if _says_an_end(near[at].line)]
    for complaints in ([at for at in ends if at in loud], loud, ends):
        if complaints:
            return near[_first_of_the_last(complaints, near)]
    return None


def _first_of_the_last(complaints: Sequence[int], near: Sequence[LastLine]) -> int:
    """Return the first of the last lines that complain one behind the other."""
    at = complaints[-1]
    for former in reversed(complaints[:-1]):
        if at - former > _BETWEEN or near[former].line.source != near[at].line.source:
            break
        at = former
    return at


def _says_an_end(line: PrintedLine) -> bool:
    """Return whether a line says that a program ended; who only asks for it does not know."""
    stated = _QUESTION.sub("", line.body[:_SEARCHED])
    return _SAYS_AN_END.search(stated) is not None


def _complains(line: PrintedLine) -> bool:
    text = line.body[:_SEARCHED]
    return (
        _COMPLAINS.search(text) is not None
        and _SAYS_NOTHING.search(text) is None
        and not has_role("another try", text)
    )
