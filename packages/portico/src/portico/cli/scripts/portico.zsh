#compdef portico
# Completion of `portico` in zsh.
_portico() {
    local one prefix
    local -a found
    found=("${(@f)$("${(Q)words[1]/#\~/$HOME}" complete words "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    for one in $found; do
        case $one in
            :files*)
                prefix=${${one#:files}# }
                [[ -n $prefix ]] && compset -P "${(b)prefix}"
                _files
                ;;
            *=) compadd -S '' -- "$one" ;;
            *) compadd -- "$one" ;;
        esac
    done
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _portico "$@"
else
    compdef _portico portico
fi
