# shellcheck shell=bash
# Calls the Docker engine's HTTP API with curl: many machines have an engine but no docker client.

engine_host() {
    if [[ -n ${DOCKER_HOST:-} ]]; then
        echo "$DOCKER_HOST"
        return
    fi
    # The same order as testcontainers.
    local socket
    for socket in /var/run/docker.sock "${XDG_RUNTIME_DIR:-}/.docker/run/docker.sock" \
        "${HOME:-}/.docker/run/docker.sock" "${HOME:-}/.docker/desktop/docker.sock"; do
        if [[ -S $socket ]]; then
            echo "unix://$socket"
            return
        fi
    done
    echo unix:///var/run/docker.sock
}

# engine PATH [CURL OPTION…]
engine() {
    local path=$1 host
    host=$(engine_host)
    shift
    set -- --silent --show-error --fail --noproxy '*' --connect-timeout 3 "$@"
    case $host in
        unix://*) curl --unix-socket "${host#unix://}" "$@" "http://localhost$path" ;;
        tcp://* | http://*) curl "$@" "http://${host#*://}$path" ;;
        *) return 1 ;;
    esac
}

engine_answers() {
    engine /_ping --max-time 3 --output /dev/null 2>/dev/null
}

image_exists() {
    engine "/images/$1/json" --output /dev/null 2>/dev/null
}
