"""What is wrapped around a batch script that can save, so that it stops, comes back and goes on.

The script is the user's own, unchanged, with its `#SBATCH` lines before. Asked to stop by USR1, the
wrapper passes that on to whoever of the job listens for it; nobody else is hurt. A script that ends
with 75 has saved: its progress is written down, it is requeued, and begins again when its comment
says. Programs that requeue themselves do so through a `scontrol` that adds that begin.
"""

from __future__ import annotations

import re
import shlex

from lowtide.errors import InvalidInput

_END = "END_OF_THE_SCRIPT_THAT_LOWTIDE_WRAPS"
# Whoever gets this requeues a job: progress first, since that may be written while it runs.
_REQUEUE = r"""#!/bin/bash
# Write down what is saved, requeue, and begin again when the comment says.
trap '' TERM USR1
real="$LOWTIDE_SCONTROL"
id="$1"
tell() {
  for pause in 1 2 4 8 16 30 30 30; do "$real" "$@" && return 0; sleep $pause; done
  return 1
}
comment="$(squeue -h -j "$id" -O Comment:1100 | sed -e 's/ *$//' -e 1q)"
number() { printf '%s' "$comment" | sed -n 's/.*lt1:{[^}]*"'"$1"'":\([0-9][0-9]*\).*/\1/p'; }
now=$(date +%s)
if [ -n "$LOWTIDE_CHECKPOINT" ]; then
  # Who has saved to no file has not saved: what it did since it began is not counted.
  written="$(find "$LOWTIDE_CHECKPOINT" -newermt "@$LOWTIDE_BEGAN" 2>/dev/null)"
  [ -n "$written" ] || LOWTIDE_BEGAN=$now
  rm -f "$LOWTIDE_CHECKPOINT.saving"
fi
begin=$(number b) done=$(number p) startup=$(number su)
worked=$((now - LOWTIDE_BEGAN - ${startup:-0}))
if [ -n "$done" ] && [ "$worked" -gt 0 ]; then
  done=$((done + worked))
  comment="$(printf '%s' "$comment" | sed 's/\(lt1:{[^}]*"p":\)[0-9]*/\1'"$done"'/')"
  tell update "JobId=$id" "Comment=$comment"
fi
tell requeue "$id" || exit 1
left=$((${begin:-0} - $(date +%s)))
# Without it Slurm would begin as soon as its credentials of the first start have expired.
[ "$left" -gt 0 ] && tell update "JobId=$id" "StartTime=now+$left"
exit 0
"""
_SHIM = r"""#!/bin/bash
# A program that requeues its own job gets the begin that was planned for it.
if [ "$1" = requeue ] && [ $# = 2 ]; then exec "$LOWTIDE_FOLDER/requeue" "$2"; fi
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
  cp -a "$ck" "$ck.new" && rm -rf "$ck.kept" && mv "$ck.new" "$ck.kept"
fi
rm -f "$ck.saving"
LOWTIDE_CHECKPOINT="$ck"
"""
_WRAPPER = r"""
export LOWTIDE_SCONTROL="$(command -v scontrol)" LOWTIDE_BEGAN="$(date +%s)"
export LOWTIDE_FOLDER="$(mktemp -d)" LOWTIDE_CHECKPOINT=
trap 'rm -rf "$LOWTIDE_FOLDER"' EXIT
@FILES@@CHECKPOINT@
chmod 700 "$LOWTIDE_FOLDER"/*
id="$SLURM_JOB_ID"
[ -n "$SLURM_ARRAY_TASK_ID" ] && id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
below() {
  local each
  for each in $(cat /proc/"$1"/task/*/children 2>/dev/null); do echo "$each"; below "$each"; done
}
# Bit 9 of the signals that a process handles, or takes when it likes to, is USR1.
listens() {
  local name mask
  while read -r name mask; do
    case "$name" in SigBlk:|SigCgt:) (( 0x$mask & 0x200 )) && return 0;; esac
  done 2>/dev/null < /proc/"$1"/status
  return 1
}
pass_on() {
  local each
  [ -z "$LOWTIDE_CHECKPOINT" ] || touch "$LOWTIDE_CHECKPOINT.saving"
  for each in $child $(below $child); do listens "$each" && kill -USR1 "$each"; done
}
trap pass_on USR1
PATH="$LOWTIDE_FOLDER/bin:$PATH" @INTERPRETER@ "$LOWTIDE_FOLDER/script" "$@" &
child=$!
# A wait that is interrupted says so, and not how the script ended: who is gone is asked once more.
while :; do wait $child; status=$?; kill -0 $child 2>/dev/null || break; done
wait $child 2>/dev/null; again=$?
[ $again = 127 ] || status=$again
if [ $status = 75 ]; then
  trap '' TERM USR1
  "$LOWTIDE_FOLDER/requeue" "$id"
fi
exit $status
"""


def wrap(script: str, checkpoint: str = "") -> str:
    """Return a batch script that runs another, stops it when it is asked to, and brings it back.

    Args:
        script: The user's own, with its `#SBATCH` lines.
        checkpoint: The file or folder that it saves to, with %j, %A and %a as sbatch has them;
            empty where it looks after that itself.
    """
    first, *_ = script.splitlines() or [""]
    if not first.startswith("#!") or not first[2:].strip():
        raise InvalidInput(
            "a batch script begins with #! and who runs it, as in #!/bin/bash, and not with "
            f"{first[:40]!r}"
        )
    if _END in script:
        raise InvalidInput("this script is wrapped already: give the one that it was made of")
    files = {"script": script, "requeue": _REQUEUE, "bin_scontrol": _SHIM}
    written = "".join(
        f"cat > \"$LOWTIDE_FOLDER/{name}\" <<'{_END}'\n{text.rstrip(chr(10))}\n{_END}\n"
        for name, text in files.items()
    )
    moved = (
        'mkdir "$LOWTIDE_FOLDER/bin"\n'
        'mv "$LOWTIDE_FOLDER/bin_scontrol" "$LOWTIDE_FOLDER/bin/scontrol"\n'
        'chmod 700 "$LOWTIDE_FOLDER/bin/scontrol"\n'
    )
    parts = {
        "@FILES@": written + moved,
        "@CHECKPOINT@": _CHECKPOINT.replace("@PATH@", shlex.quote(checkpoint))
        if checkpoint
        else "",
        # As the kernel takes it: whatever follows the interpreter is one word, quotes and all.
        "@INTERPRETER@": shlex.join(first[2:].strip().split(maxsplit=1)),
    }
    # In one go: what a script says stays as it is, whatever it holds.
    body = re.sub("|".join(parts), lambda found: parts[found[0]], _WRAPPER)
    return "\n".join(["#!/bin/bash", *directives(script), body])


def directives(script: str) -> list[str]:
    """Return the `#SBATCH` lines that sbatch would look at: those before the first command."""
    found = []
    for line in script.splitlines():
        if re.match(r"#SBATCH\s", line):
            found.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found
