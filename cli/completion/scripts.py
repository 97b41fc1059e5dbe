"""Completion files for bash, zsh and fish. They ask ``completion words`` for what to offer."""

from __future__ import annotations

BASH = r"""# Completion of superconductor for bash, and for zsh through its bashcompinit. Made by 'superconductor completion'.

_superconductor()
{
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        case "$word" in
            "") continue ;;
            */) compopt -o nospace 2>/dev/null ;;
        esac
        COMPREPLY+=("$(printf '%q' "$word")")
    done <<EOF
$("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null </dev/null)
EOF
}

complete -F _superconductor superconductor
"""

ZSH = f"""#compdef superconductor
# To be sourced, or put as _superconductor into a folder of $fpath.
autoload -Uz bashcompinit && bashcompinit
{BASH}"""

FISH = r"""# Completion of superconductor for fish. Made by 'superconductor completion'.
complete -c superconductor -f -a \
    '(superconductor completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null </dev/null)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
