"""What is wrapped around a batch script that can save, so that it stops, comes back and goes on.

The script is the user's own, unchanged, with its `#SBATCH` lines before. Asked to stop by USR1, the
wrapper passes that, or the signal that its `--signal` names, on to whoever of the job listens for
it; nobody else is hurt. A script that ends with 75 has saved: its progress is written down, it is
requeued, and begins again when its comment says. Programs that requeue themselves do so through a
`scontrol` that adds that begin. In all else the script runs as if nobody were around it: its input,
its signals and its time to clean up.
"""

from __future__ import annotations

import re
import shlex
from signal import SIGTERM, Signals

from lowtide.errors import InvalidInput
from lowtide.slurm.client import SILENCE

_END = "END_OF_THE_SCRIPT_THAT_LOWTIDE_WRAPS"
# Whoever gets this requeues a job: progress first, since that may be written while it runs. Who
# does not answer is asked for as long as the job may stay where it is, since all were lost else; a
# refusal is an answer after the third time. Whoever is being cancelled is not brought back.
_REQUEUE = (
    r"""#!/bin/bash
# Write down what is saved, requeue, and begin again when the comment says.
trap '' TERM USR1
# What its user has set for squeue by hand would hide the job from it.
unset ${!SQUEUE_*}
id="$1"
tell() {
  local pause=1 refused=0
  until said="$("$@" 2>&1)"; do
    printf '%s' "$said" | grep -qiE '"""
    + SILENCE
    + r"""' || refused=$((refused + 1))
    [ $refused -lt 3 ] || { printf '%s\n' "$said" >&2; return 1; }
    sleep $pause
    pause=$((pause < 8 ? 2 * pause : 10))
  done
}
tell squeue -h -j "$id" -O State:20,Comment:1100
case "$said" in COMPLETING*|CANCELLED*|TIMEOUT*|PREEMPTED*) exit 2;; esac
comment="$(printf '%s' "${said:20}" | sed -e 's/^ *//' -e 's/ *$//' -e 1q)"
number() { printf '%s' "$comment" | sed -n 's/.*lt1:{[^}]*"'"$1"'":\([0-9][0-9]*\).*/\1/p'; }
now=$(date +%s)
if [ -n "$LOWTIDE_CHECKPOINT" ]; then
  # Who has saved to no file has not saved: what it did since it began is not counted.
  written="$(find "$LOWTIDE_CHECKPOINT" -newermt "@$LOWTIDE_BEGAN" 2>/dev/null)"
  [ -n "$written" ] || LOWTIDE_BEGAN=$now
  rm -f "$LOWTIDE_CHECKPOINT.saving"
fi
begin=$(number b) done=$(number p) startup=$(number su)
# What it took to save was no work: counted as such, the rest would seem shorter than it is.
until=$(cat "$LOWTIDE_FOLDER/asked" 2>/dev/null)
worked=$((${until:-$now} - LOWTIDE_BEGAN - ${startup:-0}))
if [ -n "$done" ] && [ "$worked" -gt 0 ]; then
  done=$((done + worked))
  comment="$(printf '%s' "$comment" | sed 's/\(lt1:{[^}]*"p":\)[0-9]*/\1'"$done"'/')"
  tell "$LOWTIDE_SCONTROL" update "JobId=$id" "Comment=$comment"
fi
again() {
  tell "$LOWTIDE_SCONTROL" requeue "$id" || exit 1
  local left=$((${begin:-0} - $(date +%s)))
  # Without it Slurm would begin as soon as its credentials of the first start have expired.
  [ "$left" -le 0 ] || tell "$LOWTIDE_SCONTROL" update "JobId=$id" "StartTime=now+$left"
}
again
# A controller that is killed forgets its last five seconds, and would take for running what has
# left by then: nobody leaves before that, as long as the site lets him stay (KillWait).
for pause in 3 4; do
  sleep $pause
  tell squeue -h -j "$id" -O State:20
  case "$said" in RUNNING*) again;; esac
done
touch "$LOWTIDE_FOLDER/requeued" && kill -TERM "$LOWTIDE_WRAPPER"
# A program that has requeued itself would work on, in vain, if this were to return.
[ -z "$2" ] || sleep 20
exit 0
"""
)
_SHIM = r"""#!/bin/bash
# A program that requeues its own job gets the begin that was planned for it. One that requeues
# another, or runs in a job that was submitted from here and has this in its path, is not meant.
if [ "$1" = requeue ] && [ $# = 2 ] && [ "$SLURM_JOB_ID" = "$LOWTIDE_JOB" ]; then
  case "$2" in
    "$SLURM_JOB_ID"|"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID")
      exec bash "$LOWTIDE_FOLDER/requeue" "$2" stay ;;
  esac
fi
exec "$LOWTIDE_SCONTROL" "$@"
"""
# Where a job says which file it saves to: what was being written when it was cut off is put aside,
# and what it resumed from the last time takes its place.
_CHECKPOINT = r"""
ck=@PATH@
ck="${ck//%j/$SLURM_JOB_ID}" ck="${ck//%A/$SLURM_ARRAY_JOB_ID}" ck="${ck//%a/$SLURM_ARRAY_TASK_ID}"
asked=$(stat -c %Y "$ck.saving" 2>/dev/null)
# What was written ten minutes later was no answer to being asked.
if [ -n "$asked" ] && [ -n "$(find "$ck" -newer "$ck.saving" 2>/dev/null)" ] \
  && [ -z "$(find "$ck" -newermt "@$((asked + 600))")" ]; then
  rm -rf "$ck.torn"
  mv "$ck" "$ck.torn"
  [ -e "$ck.kept" ] && cp -a "$ck.kept" "$ck"
elif [ -e "$ck" ]; then
  rm -rf "$ck.new"
  # A copy that does not fit must not take the room that the job needs to save.
  cp -a --reflink=auto "$ck" "$ck.new" && rm -rf "$ck.kept" && mv "$ck.new" "$ck.kept" \
    || rm -rf "$ck.new"
fi
rm -f "$ck.saving"
LOWTIDE_CHECKPOINT="$ck"
"""
# The script is as it was submitted, and what it runs is what lies in its folder by now: who goes on
# from what another program has saved should be told.
_CHANGED = r"""
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  said="$(unset ${!SQUEUE_*}; timeout 15 squeue -h -j "$id" -O State:20,Comment:1100 2>/dev/null)"
  said="$(printf '%s' "${said:20}" | sed -e 's/^ *//' -e 's/ *$//' -e 1q)"
  since="$(printf '%s' "$said" | sed -n 's/.*lt1:{[^}]*"a":\([0-9][0-9]*\).*/\1/p')"
  [ -z "$since" ] || changed="$(timeout 15 find . -maxdepth 3 -type f -newermt "@$since" \
    -regex '.*\.\(py\|sh\|R\|jl\|m\|pl\|lua\|c\|cc\|cpp\|h\|f\|f90\)' 2>/dev/null \
    | sort | head -n 9 | tr '\n' ' ')"
  if [ -n "$changed" ]; then
    echo "lowtide: changed since it was submitted: ${changed}- what it saved is of what it was" >&2
    case "$said" in *'"cf":1'*) ;; *)
      said="$(printf '%s' "$said" | sed 's/\(.*lt1:{\)/\1"cf":1,/')"
      timeout 15 "$LOWTIDE_SCONTROL" update "JobId=$id" "Comment=$said" ;;
    esac
  fi
fi
since=0
"""
_WRAPPER = r"""
# Who submits from within a job that is wrapped hands its path on: what lies there is not for us.
rest="$PATH:" PATH=
while [ -n "$rest" ]; do
  each="${rest%%:*}" rest="${rest#*:}"
  case "$each" in */lowtide.????????/bin) ;; *) PATH="$PATH${PATH:+:}$each" ;; esac
done
export LOWTIDE_SCONTROL="$(command -v scontrol)" LOWTIDE_BEGAN="$(date +%s)"
export LOWTIDE_JOB="$SLURM_JOB_ID"
export LOWTIDE_FOLDER= LOWTIDE_CHECKPOINT= LOWTIDE_WRAPPER=$$
trap 'rm -rf "$LOWTIDE_FOLDER"' EXIT
lay_down() {
  # Bash itself lays texts down there.
  local TMPDIR="$1"
  LOWTIDE_FOLDER="$(mktemp -d "$1/lowtide.XXXXXXXX")" && mkdir "$LOWTIDE_FOLDER/bin" || return
@FILES@
  chmod 700 "$LOWTIDE_FOLDER"/bin/* "$LOWTIDE_FOLDER"/[rs]*
}
for place in "${TMPDIR:-/tmp}" /tmp /dev/shm "$HOME" "$PWD"; do
  lay_down "$place" 2>/dev/null && break
  [ -z "$LOWTIDE_FOLDER" ] || rm -rf "$LOWTIDE_FOLDER"
  LOWTIDE_FOLDER=
done
if [ -z "$LOWTIDE_FOLDER" ]; then echo "lowtide: no folder takes the script" >&2; exit 1; fi
@CHECKPOINT@
id="$SLURM_JOB_ID" asked=0 ended= since=0
[ -n "$SLURM_ARRAY_TASK_ID" ] && id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
@CHANGED@
# Whether a process handles the signal, or keeps it back to take when it likes to.
has() {
  local name mask
  while read -r name mask; do
    [ "$name" = "$2" ] && (( 0x$mask & @MASK@ )) && return 0
  done 2>/dev/null < /proc/"$1"/status
  return 1
}
# A shell keeps all signals back for the moment in which it starts a program, and would be ended by
# what came then.
listens() {
  has "$1" SigCgt: && return 0
  for _ in 1 2 3 4 5; do has "$1" SigBlk: || return 1; sleep 0.1; done
}
# Whoever listens passes it on to those below if need be: told twice, a program would begin to save
# in the midst of saving. Asked once more, the others are told too, but never a fork of who listens:
# a worker has the handlers of the program, and would save beside it.
listeners() {
  local each told=
  listens "$1" && told=1 && echo "$1" && [ $asked -lt 2 ] && return
  for each in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    [ -n "$told" ] && cmp -s /proc/"$1"/cmdline /proc/"$each"/cmdline || listeners "$each"
  done
}
pass_on() {
  local each now=$(date +%s)
  asked=$((asked + 1))
  # Asked again soon, it may still be saving; later it has not heard, and worked on.
  [ $((now - since)) -lt 900 ] || since=$now
  echo $since > "$LOWTIDE_FOLDER/asked"
  [ -z "$LOWTIDE_CHECKPOINT" ] || touch "$LOWTIDE_CHECKPOINT.saving"
  for each in $(listeners $child); do kill -@ASK@ "$each"; done
}
run() {
  # In the background it would have neither its input nor signals from the keyboard.
  (
    trap - INT QUIT
    PATH="$LOWTIDE_FOLDER/bin:$PATH"
    exec @INTERPRETER@ "$LOWTIDE_FOLDER/script" "$@"
  ) <&0 &
  child=$!
  # A wait that is interrupted says so, and not how the script ended: who is gone is asked again.
  while :; do wait $child; status=$?; kill -0 $child 2>/dev/null || break; done
  wait $child 2>/dev/null; again=$?
  [ $again = 127 ] || status=$again
}
child=
for each in HUP INT QUIT USR2 ALRM; do trap "kill -$each \$child 2>/dev/null" $each; done
# All of the job is told to end by it and has some seconds for that, but not who is requeued.
trap '[ ! -e "$LOWTIDE_FOLDER/requeued" ] || exit 75; @ENDING@' TERM
trap pass_on @ASKED@
while run "$@"; [ $status = 75 ] && [ -z "$ended" ]; do
  now=$(date +%s)
  if [ $asked = 0 ] && [ $((now - LOWTIDE_BEGAN)) -lt @SOON_S@ ]; then
    echo "lowtide: it ended with 75 at once without being asked to: it is not started again" >&2
    break
  fi
  bash "$LOWTIDE_FOLDER/requeue" "$id"
  # Refused for good, it goes on where it is: that costs carbon, and no work.
  [ $? = 1 ] || break
  echo "lowtide: it cannot be requeued, and goes on" >&2
  asked=0 since=0 LOWTIDE_BEGAN=$now
  rm -f "$LOWTIDE_FOLDER/asked"
done
exit $status
"""
# Who ends with 75 sooner than this, and was not asked to, has not saved: it would go on for ever.
_SOON_S = 60


def wrap(script: str, checkpoint: str = "", *, signal: str = "") -> str:
    """Return a batch script that runs another, stops it when it is asked to, and brings it back.

    Args:
        script: The user's own, with its `#SBATCH` lines.
        checkpoint: The file or folder that it saves to, with %j, %A and %a as sbatch has them;
            empty where it looks after that itself.
        signal: What its user has said behind `--signal`: by that it is asked to save. Empty for
            USR1.
    """
    first, *_ = script.splitlines() or [""]
    if not first.startswith("#!") or not first[2:].strip():
        raise InvalidInput(
            "a batch script begins with #! and who runs it, as in #!/bin/bash, and not with "
            f"{first[:40]!r}"
        )
    if _END in script:
        raise InvalidInput("this script is wrapped already: give the one that it was made of")
    files = {"script": script, "requeue": _REQUEUE, "bin/scontrol": _SHIM}
    written = "\n".join(
        f"cat > \"$LOWTIDE_FOLDER/{name}\" <<'{_END}' || return\n{text.rstrip(chr(10))}\n{_END}"
        for name, text in files.items()
    )
    ask, alone = _signal_of(signal)
    parts = {
        "@FILES@": written,
        "@CHECKPOINT@": _CHECKPOINT.replace("@PATH@", shlex.quote(checkpoint))
        if checkpoint
        else "",
        "@CHANGED@": _CHANGED,
        # As the kernel takes it: whatever follows the interpreter is one word, quotes and all.
        "@INTERPRETER@": shlex.join(first[2:].strip().split(maxsplit=1)),
        "@ASK@": ask.name.removeprefix("SIG"),
        "@MASK@": hex(1 << (ask - 1)),
        # What its user is warned by reaches the wrapper alone, if it is meant for the script alone.
        "@ASKED@": " ".join(
            {"USR1": 0, ask.name.removeprefix("SIG"): 0} if ask != SIGTERM else ["USR1"]
        ),
        "@ENDING@": "pass_on" if alone and ask == SIGTERM else "ended=1",
        "@SOON_S@": str(_SOON_S),
    }
    # In one go: what a script says stays as it is, whatever it holds.
    body = re.sub("|".join(parts), lambda found: parts[found[0]], _WRAPPER)
    return "\n".join(["#!/bin/bash", *directives(script), body])


def _signal_of(said: str) -> tuple[Signals, bool]:
    """Return by which signal a job saves, and whether Slurm sends it to the script alone.

    >>> _signal_of("B:USR2@90")
    (<Signals.SIGUSR2: 12>, True)
    """
    found = re.match(r"(R?B?):?(?:SIG)?(\w+)", said.strip().upper())
    if found is None:
        return Signals.SIGUSR1, True
    name, alone = found[2], "B" in found[1]
    try:
        return (Signals(int(name)) if name.isdecimal() else Signals[f"SIG{name}"]), alone
    except (KeyError, ValueError):
        # That is sbatch's to refuse.
        return Signals.SIGUSR1, True


def directives(script: str) -> list[str]:
    """Return the `#SBATCH` lines that sbatch would look at: those before the first command."""
    found = []
    for line in script.splitlines():
        if re.match(r"#SBATCH\s", line):
            found.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found
