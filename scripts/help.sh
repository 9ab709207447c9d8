# Sourced by the scripts: with -h or --help as the first argument, prints the comment at the script's beginning and ends it.
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$(dirname "${BASH_SOURCE[0]}")/${0##*/}"
    exit 0
fi
