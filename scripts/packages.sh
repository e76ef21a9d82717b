# shellcheck shell=bash
# Finds commands, and installs their packages on Debian.

has() { command -v "$1" >/dev/null; }

# tool COMMAND PACKAGE WHY
tool() {
    if has "$1"; then
        echo "$1: found"
    elif can_install; then
        install "$2"
        echo "$1: installed"
    else
        echo "$1: missing ($3); install it with this system's packages"
    fi
}

can_install() { ((EUID == 0)) && has apt-get; }

install() {
    # The package lists may be outdated and name a package that the mirror no longer has.
    if [[ -z ${lists_are_fresh:-} ]]; then
        apt-get update -qq >/dev/null
        lists_are_fresh=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" </dev/null >/dev/null
}
