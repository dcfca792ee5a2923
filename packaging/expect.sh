# What both tries of a package say with: `. /expect.sh` in a clean root.

# expect WHAT WANTED FOUND
expect() {
    if [ "$2" != "$3" ]; then
        printf 'not ok: %s: expected "%s", found "%s"\n' "$1" "$2" "$3"
        exit 1
    fi
    printf 'ok: %s: %s\n' "$1" "$2"
}

# code COMMAND: its exit code
code() {
    status=0
    "$@" >/dev/null 2>&1 || status=$?
    echo "$status"
}
