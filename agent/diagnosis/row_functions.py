"""Rows that need more than words: functions of a parsed error, which rows.toml names.

A function returns the cause with its sentence and remedy, or None where the error is another one.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from agent.diagnosis.api_functions import request_to_a_model_api
from agent.diagnosis.cause import Cause
from agent.diagnosis.config_functions import (
    refused_by_a_check,
    refused_by_trainer,
    refused_field,
    refused_setting,
)
from agent.diagnosis.data_functions import missing_column
from agent.diagnosis.file_functions import (
    incomplete_checkpoint,
    missing_file,
    missing_program,
    not_json,
    refused_by_the_system,
)
from agent.diagnosis.http_functions import (
    refused_by_a_server,
    request_of_a_reward,
    request_of_a_search,
    request_to_an_engine,
    unreachable_server,
)
from agent.diagnosis.memory_functions import holder_of_gpu_memory
from agent.diagnosis.python_functions import (
    failed_assertion,
    made_source,
    mistake_in_own_code,
    python_too_new,
    python_too_old,
    variable_not_set,
)
from agent.diagnosis.size_functions import sizes_that_do_not_divide
from agent.diagnosis.version_functions import (
    argument_of_another_version,
    attribute_of_another_version,
    lacking_name,
    module_of_another_version,
    package_of,
)
from agent.diagnosis.weight_functions import refused_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.diagnosis.errors.parsed_error import ParsedError

    RowFunction = Callable[[ParsedError], Cause | None]

_STANDARD_LIBRARY = "/signal.py"


def signal_outside_main_thread(error: ParsedError) -> Cause | None:
    """A library installs a signal's handler in a thread: the frames show which one."""
    if error.name != "ValueError" or "signal only works in main thread" not in error.message:
        return None
    users = [frame for frame in error.frames if not frame.file.endswith(_STANDARD_LIBRARY)]
    where = f" ({users[-1].file}:{users[-1].line})" if users else ""
    return Cause(
        "signal in a thread",
        f"a handler of a signal was installed outside the main thread{where}",
        "Call it from the main thread of its process, or turn off what installs the handler: "
        "a Ray actor with max_concurrency or async methods runs its methods in other threads",
    )


def import_between_packages(error: ParsedError) -> Cause | None:
    """A package imports a name that the installed version of another one lacks."""
    # Which name of which package, and is it installed or the job's own?
    found = re.match(r"cannot import name '(\w+)' from '([\w.]+)' \((.+)\)", error.message)
    verb = "imports"
    if found is None:
        found = re.match(r"module '([\w.]+)' has no attribute '(\w+)'", error.message)
        if found is None:
            return None
        module, name = found.groups()
        package = module.partition(".")[0]
        verb = "uses"
        if package in sys.stdlib_module_names:
            return None  # of Python itself, which other rows know
        if not any(package_of(frame.file) == package for frame in error.frames[-1:]) and (
            not error.frames or not package_of(error.frames[-1].file)
        ):
            return None  # a file of the job may have the package's name
    else:
        name, module, file = found.groups()
        package = module.partition(".")[0]
        if package_of(file) != package:
            return None

    return lacking_name(error, package, f"{verb} {name} of {module}")


FUNCTIONS: Mapping[str, RowFunction] = {
    function.__name__: function
    for function in (
        signal_outside_main_thread,
        import_between_packages,
        module_of_another_version,
        argument_of_another_version,
        attribute_of_another_version,
        missing_column,
        missing_file,
        missing_program,
        incomplete_checkpoint,
        mistake_in_own_code,
        made_source,
        python_too_new,
        holder_of_gpu_memory,
        refused_by_a_server,
        request_to_a_model_api,
        request_of_a_reward,
        request_of_a_search,
        request_to_an_engine,
        unreachable_server,
        refused_by_the_system,
        not_json,
        refused_field,
        refused_by_a_check,
        refused_by_trainer,
        refused_setting,
        python_too_old,
        variable_not_set,
        failed_assertion,
        sizes_that_do_not_divide,
        refused_weight,
    )
}
"""The functions by name, as rows.toml has them."""
