#!/bin/sh
# Starts the agent: its release on trial, at most three times; else its release in use; else the
# package's own. A pointer names a slot and the digest of the slot's list of digests. Commands, and
# users who do not own the slots, get the package's own agent. No update changes this file.
packaged=/usr/lib/edgepack/bin/edgepack-agent
export EDGEPACK_AGENT_SLOTS=/var/lib/edgepack/agent

# Becomes the agent of a pointer, if the slot is whole; else returns.
become() {
    read -r slot digest _ <"$EDGEPACK_AGENT_SLOTS/$1" || return 0
    case $slot in a | b) ;; *) return 0 ;; esac
    shift
    (
        cd "$EDGEPACK_AGENT_SLOTS/$slot" || exit
        echo "$digest  digests" | sha256sum --check --status &&
            sha256sum --check --status --strict digests
    ) && exec "$EDGEPACK_AGENT_SLOTS/$slot/bin/python" -I -B -m edgepack.agent.cli "$@"
}

# Counts a start of the trial on the disk before the start.
may_try() {
    tries=$(cat "$EDGEPACK_AGENT_SLOTS/tries" 2>/dev/null || echo 0)
    [ "$tries" -lt 3 ] && echo $((tries + 1)) >"$EDGEPACK_AGENT_SLOTS/tries.new" &&
        sync "$EDGEPACK_AGENT_SLOTS/tries.new" &&
        mv "$EDGEPACK_AGENT_SLOTS/tries.new" "$EDGEPACK_AGENT_SLOTS/tries"
}

if [ "$1" = run ] && [ -O "$EDGEPACK_AGENT_SLOTS" ]; then
    if [ -f "$EDGEPACK_AGENT_SLOTS/trial" ]; then
        if may_try; then become trial "$@"; fi
        rm -f "$EDGEPACK_AGENT_SLOTS/trial"
    fi
    for pointer in active previous; do
        if [ -f "$EDGEPACK_AGENT_SLOTS/$pointer" ]; then become "$pointer" "$@"; fi
    done
fi
exec "$packaged" "$@"
