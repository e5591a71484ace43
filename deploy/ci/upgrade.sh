#!/usr/bin/env bash
# Upgrades a job from CI: drain the current run, wait, deploy the new file, start its containers, watch them, and roll back if they fail.
#
#     upgrade.sh JOB JOBFILE [options of `sluice deploy`]
#
# It can be interrupted and called again with the same DRAIN_UUID: it joins its drain and continues. docs/howto/ci.md explains it.
#
#   SLUICE_COORDINATOR_URL  the coordinator; several URLs of it are separated by commas
#   SLUICE_TOKEN            a token with the roles deployer and operator for the job
#   SLUICE_CA_FILE          the authorities of the coordinator's certificate, if the machine does not trust them
#   DRAIN_UUID              the id of the drain: one for each deployment, such as a UUID made from the id of the pipeline
#   DRAIN_MODE              DEFAULT (empties the state) or KEEP_STATE
#   DRAIN_SECONDS           after how many seconds the drain fails (600)
#   WATCH_SECONDS           how long the new version may take until each stage has committed a batch, or has nothing to read (180)
#   START_CONTAINERS        a command that makes the platform start containers. It gets SLUICE_RUN_ID and VERSION (new or old)
#
# Exit codes: 0 upgraded; 1 refused, or the coordinator was unreachable; 2 not drained; 3 failed, and not rolled back; 4 rolled back.
set -euo pipefail

job=$1 job_file=$2
shift 2
IFS=", " read -ra urls <<<"$SLUICE_COORDINATOR_URL"
uuid=${DRAIN_UUID:-$(python3 -c 'import uuid; print(uuid.uuid4())')}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
old=""

say() { echo "$(date -u +%H:%M:%S) $*" >&2; }

# request METHOD PATH [BODY [HEADER]]: prints the answer. Repeats it for two minutes while the coordinator does not answer, or answers 503.
# A refusal is printed and ends with 1.
request() {
    local arguments=(--silent --show-error --max-time 30 --request "$1" --output "$scratch/answer" --write-out '%{http_code}') status
    [ -z "${SLUICE_TOKEN:-}" ] || arguments+=(--header "@$scratch/token")
    [ -z "${SLUICE_CA_FILE:-}" ] || arguments+=(--cacert "$SLUICE_CA_FILE")
    [ -z "${3:-}" ] || arguments+=(--header 'Content-Type: application/json' --data "$3")
    [ -z "${4:-}" ] || arguments+=(--header "$4")
    for _ in $(seq 60); do
        status=$(curl "${arguments[@]}" "${urls[0]%/}$2" 2>"$scratch/error") || status=000
        case $status in
            2*) cat "$scratch/answer"; return 0 ;;
            000 | 503) urls=("${urls[@]:1}" "${urls[0]}"); sleep 2 ;;
            *) say "$1 $2: $status $(cat "$scratch/answer")"; return 1 ;;
        esac
    done
    say "$1 $2: the coordinator did not answer: $(cat "$scratch/error")"
    return 1
}

# The token is passed in a file, because every user of the machine can read the arguments of a process.
(umask 077 && printf 'Authorization: Bearer %s\n' "${SLUICE_TOKEN:-}" >"$scratch/token")

# field EXPRESSION: evaluates a Python expression over the JSON document `d` on standard input.
field() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }

current_run() { request GET /jobs | JOB=$job field "next((j['currentRun'] for j in d['jobs'] if j['job'] == __import__('os').environ['JOB']), '')"; }

# watch RUN: 0 when each stage has committed a batch or has nothing to read; 1 when a container has failed, the run has ended, or it is late.
watch() {
    local until=$((SECONDS + ${WATCH_SECONDS:-180})) found
    while [ $SECONDS -lt $until ]; do
        found=$(request GET "/runs/$1" | field "
'failed: the run is ' + d['state'] if d['state'] in ('FAILED', 'STOPPED', 'DRAINED')
else 'failed: ' + next(c['reason'] or 'exit code %s' % c['exitCode'] for c in d['incarnations'] if c['exitCode'] in (1, 4))
if any(c['exitCode'] in (1, 4) for c in d['incarnations'])
else 'healthy' if d['tasks'] and all(t['holder'] and len(t['stages']) >= len(t['assignedStages'] or ())
    and all(s['batchId'] is not None or s['lag'] == 0 for s in t['stages']) for t in d['tasks'])
else 'starting'") || return 1
        case $found in
            healthy) return 0 ;;
            failed*) say "$found"; return 1 ;;
        esac
        sleep 2
    done
    say "not every stage has committed a batch within ${WATCH_SECONDS:-180} s"
    return 1
}

start_containers() {
    [ -z "${START_CONTAINERS:-}" ] || SLUICE_RUN_ID=$1 VERSION=$2 bash -c "$START_CONTAINERS"
}

# --- drain -------------------------------------------------------------------------------------------------------------

run=$(current_run)
[ -n "$run" ] || { say "there is no job $job: deploy it with \`sluice deploy\`"; exit 1; }
body="{\"uuid\": \"$uuid\", \"runId\": \"$run\", \"drainMode\": \"${DRAIN_MODE:-DEFAULT}\", \"hardDeadlineSeconds\": ${DRAIN_SECONDS:-600}}"
drain=$(request POST /drain "$body" | field "d['uuid']") || exit 1
say "draining $run ($drain)"
while :; do
    answer=$(request GET "/drain/$drain") || exit 1
    phase=$(field "d['phase']" <<<"$answer")
    case $phase in
        DRAINED) break ;;
        FAILED | CANCELLED) say "the drain is $phase: $(field "d['reason']" <<<"$answer")"; exit 2 ;;
    esac
    say "$phase: $(field "'%d of %d stages remain%s' % (d['remaining'], d['total'], ''.join('; ' + ' '.join(filter(None, ('slot ' + b['processorId'], b['task'], b['stage'], b['why']))) for b in d['blockedBy'][:3]))" <<<"$answer")"
    sleep 2
done
old=$(request GET "/runs/$run/request") || exit 1
say "drained"

# --- deploy, watch, roll back ------------------------------------------------------------------------------------------

if new=$(sluice deploy "$job_file" --start drained "$@"); then
    say "deployed $new"
    echo "$new"
    if start_containers "$new" new && watch "$new"; then
        say "upgraded"
        exit 0
    fi
    request POST "/runs/$new/stop" '{"failed": true, "reason": "the new version failed: rolled back"}' >/dev/null || exit 3
    until [ "$(request GET "/runs/$new?view=basic" | field "d['state']")" = FAILED ]; do sleep 2; done
    replaces=$new
else
    replaces=$run
fi
back=$(request POST /runs "$(field "json.dumps({**d, 'start': 'drained'})" <<<"$old")" "Sluice-Replaces: $replaces" | field "d['runId']") || exit 3
say "rolled back: deployed $back"
echo "$back"
start_containers "$back" old || exit 3
exit 4
