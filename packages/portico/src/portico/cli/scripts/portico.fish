# Completion of `portico` in fish.
function __portico_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for one in ($program complete words $words[2..-1] 2>/dev/null)
        switch $one
            case ':files*'
                set -l prefix (string sub -s 8 -- $one)
                set -l typed (string sub -s (math (string length -- "$prefix") + 1) -- $words[-1])
                for path in (__fish_complete_path $typed)
                    echo $prefix$path
                end
            case '*'
                echo $one
        end
    end
end
complete -c portico -f -a '(__portico_complete)'
