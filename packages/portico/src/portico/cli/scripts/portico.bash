# Completion of `portico` in bash.
_portico() {
    local found path
    COMPREPLY=()
    while IFS= read -r found; do
        case $found in
            :files) compopt -o default 2>/dev/null ;;
            :files*)
                # Behind the @, which readline takes to be part of the word.
                while IFS= read -r path; do
                    [[ -d $path ]] && { path+=/; compopt -o nospace 2>/dev/null; }
                    printf -v path %q "$path"
                    COMPREPLY+=("@$path")
                done < <(compgen -f -- "${2#@}")
                ;;
            *=) COMPREPLY+=("$found"); compopt -o nospace 2>/dev/null ;;
            *) COMPREPLY+=("$found") ;;
        esac
    done < <("${1/#\~/$HOME}" complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -F _portico portico
