"""Completion files for bash, zsh and fish, made of the commands and their arguments."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from objects.base import Object

NAMES_LIFETIME_S = 10
"""Seconds for which names are offered again without asking."""


class Argument(Object, frozen=True, kw_only=True):
    """An option, or a positional argument, which has no ``options``.

    Its value is one of ``choices``, a name of the kind ``names``, or a ``path`` (file or directory); or else anything.
    """

    options: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    names: str
    path: str
    repeats: bool
    summary: str

    @property
    def completion_value(self) -> str:
        """What completes the value, as the scripts have it: ``@server``, ``/file``, ``=a b``, or ``-`` for nothing."""
        if self.names:
            return f"@{self.names}"
        if self.choices:
            return f"={' '.join(self.choices)}"
        return f"/{self.path}" if self.path else "-"


class CompletedCommand(Object, frozen=True, kw_only=True):
    """A command of one or more words, with its own options and those that every command has."""

    name: str
    options: tuple[Argument, ...]
    positional: tuple[Argument, ...]


def _next_words(commands: Iterable[CompletedCommand]) -> dict[str, list[str]]:
    """What may follow the first words of commands, the empty beginning included."""
    next_words: defaultdict[str, set[str]] = defaultdict(set, {"": {"help"}})
    for command in commands:
        words = command.name.split()
        for number, word in enumerate(words):
            next_words[" ".join(words[:number])].add(word)
    return {beginning: sorted(following) for beginning, following in sorted(next_words.items())}


BASH = r"""# Completion of superconductor for bash, and for zsh through its bashcompinit. Made by 'superconductor completion'.

# What may follow these first words of a command.
_superconductor_next()
{
    case "$1" in
@NEXT@
        *) return 1 ;;
    esac
}

# The options of a command.
_superconductor_options()
{
    case "$1" in
@OPTIONS@
        *) return 1 ;;
    esac
}

# What completes the value of an option of a command ($1: "COMMAND:--option"); fails where it takes none.
_superconductor_value()
{
    case "$1" in
@VALUES@
        *) return 1 ;;
    esac
}

# What completes an argument of a command ($1: "COMMAND:NUMBER", from 0).
_superconductor_argument()
{
    case "$1" in
@ARGUMENTS@
        *) _superconductor_found=- ;;
    esac
}

_superconductor_asked=
_superconductor_asked_at=0
_superconductor_names=

# Names of one kind, asked for with the same endpoint, project and folder, and kept for a few seconds.
_superconductor_ask()
{
    if [ "$_superconductor_asked" != "$*" ] || [ $((SECONDS - _superconductor_asked_at)) -ge @KEPT@ ]; then
        _superconductor_names=$("${_superconductor_program:-superconductor}" completion names "$@" 2>/dev/null </dev/null)
        _superconductor_asked="$*"
        _superconductor_asked_at=$SECONDS
    fi
}

_superconductor_offer()
{
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            "") ;;
            "$2"*) COMPREPLY+=("$(printf '%q' "$line")") ;;
        esac
    done <<EOF
$1
EOF
}

# Files, or directories only, by globbing: zsh's compgen does not filter them.
_superconductor_paths()
{
    local each
    COMPREPLY=()
    for each in "$2"*; do
        if [ -d "$each" ]; then
            COMPREPLY+=("$(printf '%q' "$each")/")
            compopt -o nospace 2>/dev/null
        elif [ "$1" = file ] && [ -e "$each" ]; then
            COMPREPLY+=("$(printf '%q' "$each")")
        fi
    done
}

_superconductor()
{
    local current="${COMP_WORDS[COMP_CWORD]}" word= command= option= value= arguments=0 i=1 known=
    local where
    where=()
    _superconductor_program=${COMP_WORDS[0]}
    while [ "$i" -lt "$COMP_CWORD" ]; do
        word="${COMP_WORDS[i]}"
        if [ "$word" = "=" ]; then
            :
        elif [ -n "$option" ]; then
            case "$option" in
                --endpoint | --project | --state | --config-file) where+=("$option" "$word") ;;
            esac
            option=
        else
            case "$word" in
                -*)
                    if _superconductor_value "$command:$word" || _superconductor_value ":$word"; then option=$word; fi
                    ;;
                *)
                    known=
                    if [ "$arguments" -eq 0 ] && _superconductor_next "$command"; then
                        case " $_superconductor_found " in
                            *" $word "*) known=yes ;;
                        esac
                    fi
                    if [ -n "$known" ]; then
                        command="${command:+$command }$word"
                        if [ "$command" = help ]; then command=; fi
                    else
                        arguments=$((arguments + 1))
                    fi
                    ;;
            esac
        fi
        i=$((i + 1))
    done
    if [ "$current" = "=" ]; then current=; fi
    if [ -n "$option" ]; then
        _superconductor_value "$command:$option" || _superconductor_value ":$option"
        value=$_superconductor_found
    else
        case "$current" in
            -*)
                _superconductor_options "$command" || _superconductor_options ""
                value="=$_superconductor_found"
                ;;
            *)
                _superconductor_argument "$command:$arguments"
                value=$_superconductor_found
                if [ "$arguments" -eq 0 ] && _superconductor_next "$command"; then
                    case "$value" in
                        =*) value="$value $_superconductor_found" ;;
                        *) value="=$_superconductor_found" ;;
                    esac
                fi
                ;;
        esac
    fi
    case "$value" in
        =*)
            _superconductor_offer "$(printf '%s\n' "${value#=}" | tr ' ' '\n')" "$current"
            ;;
        @*)
            _superconductor_ask "${value#@}" "${where[@]}"
            _superconductor_offer "$_superconductor_names" "$current"
            ;;
        /*) _superconductor_paths "${value#/}" "$current" ;;
        *) COMPREPLY=() ;;
    esac
}

complete -F _superconductor superconductor
"""

ZSH = """#compdef superconductor
# To be sourced, or put as _superconductor into a folder of $fpath.
autoload -Uz bashcompinit && bashcompinit
"""


def bash_script(commands: Sequence[CompletedCommand]) -> str:
    """The file for bash."""
    values, options, arguments, following = (defaultdict[str, list[str]](list) for _ in range(4))
    common = sorted(set.intersection(*(set(command.options) for command in commands)), key=lambda argument: argument.options)
    for name, accepted in [(command.name, command.options) for command in commands] + [("", tuple(common))]:
        options[" ".join(option for argument in accepted for option in argument.options)].append(shlex.quote(name))
        for argument in accepted:
            if argument.takes_value:
                values[argument.completion_value] += [shlex.quote(f"{name}:{option}") for option in argument.options]
    for command in commands:
        for number, argument in enumerate(command.positional):
            if argument.completion_value != "-":
                pattern = number if not argument.repeats else f"[{number}-9]*"
                arguments[argument.completion_value].append(f"{shlex.quote(f'{command.name}:')}{pattern}")
    for beginning, words in _next_words(commands).items():
        following[" ".join(words)].append(shlex.quote(beginning))
    return (
        BASH.replace("@NEXT@", _case_branches(following))
        .replace("@OPTIONS@", _case_branches(options))
        .replace("@VALUES@", _case_branches(values))
        .replace("@ARGUMENTS@", _case_branches(arguments))
        .replace("@KEPT@", str(NAMES_LIFETIME_S))
    )


def _case_branches(patterns_by_answer: Mapping[str, list[str]]) -> str:
    """Branches of a case: what sets the answer, by the patterns that lead to it."""
    return "\n".join(
        f"        {' | '.join(patterns)}) _superconductor_found={shlex.quote(answer)} ;;"
        for answer, patterns in patterns_by_answer.items()
    )


def zsh_script(commands: Sequence[CompletedCommand]) -> str:
    """The file for zsh: that for bash, which zsh can read."""
    return ZSH + bash_script(commands)


FISH = r"""# Completion of superconductor for fish. Made by 'superconductor completion'.

set -g __superconductor_commands @COMMANDS@

# The words of the command that is being typed, as far as they begin one.
function __superconductor_command
    set -l path
    for word in (commandline -opc)[2..-1]
        string match -q -- '-*' $word; and continue
        set -l longer (string join ' ' $path $word)
        if contains -- $longer $__superconductor_commands; or string match -q -- "$longer *" $__superconductor_commands
            set path $longer
        end
    end
    string join ' ' $path
end

function __superconductor_is
    set -l typed (__superconductor_command)
    test "$typed" = "$argv[1]"
end

# Names of one kind, kept for a few seconds.
function __superconductor_names
    set -l now (date +%s)
    if test "$__superconductor_asked" != "$argv[1]"; or test (math $now - $__superconductor_asked_at) -ge @KEPT@
        set -g __superconductor_found (superconductor completion names $argv[1] 2>/dev/null </dev/null)
        set -g __superconductor_asked $argv[1]
        set -g __superconductor_asked_at $now
    end
    printf '%s\n' $__superconductor_found
end

complete -c superconductor -f
"""


def fish_script(commands: Sequence[CompletedCommand]) -> str:
    """The file for fish."""
    names = " ".join(shlex.quote(command.name) for command in commands)
    lines = [FISH.replace("@COMMANDS@", names).replace("@KEPT@", str(NAMES_LIFETIME_S))]
    for beginning, words in _next_words(commands).items():
        lines.append(f"complete -c superconductor {_only_at(beginning)} -a {_quote_fish(' '.join(words))}\n")
    for command in commands:
        completed = (*command.options, *command.positional)
        lines += [f"complete -c superconductor {' '.join(_fish_words(command.name, argument))}\n" for argument in completed]
    return "".join(lines)


def _fish_words(command: str, argument: Argument) -> Iterator[str]:
    yield _only_at(command)
    for option in argument.options:
        yield f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
    if argument.takes_value:
        if argument.options:
            yield "-r" if argument.path else "-x"
        if argument.names:
            yield f"-a {_quote_fish(f'(__superconductor_names {argument.names})')}"
        elif argument.choices:
            yield f"-a {_quote_fish(' '.join(argument.choices))}"
        elif argument.path:
            yield "-F" if argument.path == "file" else "-a '(__fish_complete_directories)'"
    if argument.summary and argument.options:
        yield f"-d {_quote_fish(argument.summary)}"


def _only_at(command: str) -> str:
    return f"-n {_quote_fish(f'__superconductor_is {_quote_fish(command)}')}"


def _quote_fish(text: str) -> str:
    """In single quotes, as fish reads them."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


SHELLS: dict[str, Callable[[Sequence[CompletedCommand]], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
