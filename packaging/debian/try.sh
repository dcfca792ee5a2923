#!/bin/sh
# Installs /tenure.deb and uses it as a newcomer would. For a clean root, as root; `cargo xtask deb try` makes one.
set -eu

. /expect.sh

expect 'before' 'no command' "$(command -v tenure || echo 'no command')"
dpkg -i /tenure.deb
expect 'installed' 'install ok installed' "$(dpkg-query -W -f '${Status}' tenure)"
expect 'files are whole' '' "$(dpkg --verify tenure)"

# The command.
expect 'run' 'I hold the lock' "$(tenure run hello -- echo 'I hold the lock')"
expect 'exit code' 7 "$(code tenure run hello -- sh -c 'exit 7')"
expect 'held' 1 "$(code tenure run hello -- env -u TENURE_HELD tenure run -n hello -- true)"
expect 'as another user' 'mine' \
    "$(setpriv --reuid=nobody --clear-groups env HOME=/tmp/nobody tenure run hello -- echo mine)"
expect 'a file for all' 'shared' "$(TENURE_URL=sqlite:/var/lib/locks.db tenure run hello -- echo shared)"

# The manual: a page for the command and for each verb, and the index of pages knows them.
verbs=$(tenure --help | sed -n '/^Options:/q; s/^  \([a-z][a-z]*\)  .*/\1/p' | grep -vx help)
expect 'verbs' 'run lead attach' "$(echo $verbs | cut -d ' ' -f 1-3)"
for page in tenure $(printf 'tenure-%s ' $verbs); do
    expect "man $page" "/usr/share/man/man1/$page.1.gz" "$(man -w "$page")"
    expect "man $page has no warning" '' "$(LC_ALL=C.UTF-8 man --warnings "$page" 2>&1 >/dev/null)"
done
expect 'man tenure-run' 'EXIT STATUS' "$(MANWIDTH=80 man tenure-run | grep -o '^EXIT STATUS')"
expect 'whatis' 'tenure-run (1)' "$(whatis tenure-run | cut -c 1-14)"

# Completions, by each shell's own way from the name of a command to its script.
candidates='. /usr/share/bash-completion/bash_completion
_completion_loader tenure
COMP_WORDS=(tenure run --no); COMP_CWORD=2
function=$(complete -p tenure | sed "s/.* -F \([^ ]*\).*/\1/")
"$function" tenure --no run
printf "%s\n" "${COMPREPLY[@]}"'
expect 'bash completes' '--nonblock' "$(bash -c "$candidates" 2>&1)"
expect 'zsh completes' '_tenure' "$(zsh -fc 'autoload -U compinit; compinit -D; print $_comps[tenure]')"
expect 'fish completes' '--nonblock' "$(fish -c 'complete -C "tenure run --no"' | cut -f 1)"

# The papers.
doc=/usr/share/doc/tenure
for paper in copyright changelog.gz changelog.Debian.gz third-party-licenses.gz cli.md.gz errors.md.gz \
    exit-codes.md.gz json-and-environment.md.gz scripts.md.gz recipes.md.gz; do
    expect "$paper" 'there' "$(test -s "$doc/$paper" && echo there)"
done
for crontab in "$doc"/examples/cron/*; do
    expect "crontab -n $(basename "$crontab")" 0 "$(code crontab -n "$crontab")"
done

dpkg -r tenure
expect 'after' 'no command' "$(hash -r; command -v tenure || echo 'no command')"
expect 'left behind' '' "$(find /usr -name '*tenure*')"
echo 'the package was installed, used and removed'
