"""An example or two for each verb: shown by its --help, run by the tests."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("lowtide demo", "lowtide demo --grid sunny --seed 3"),
    "plan": (
        "lowtide plan --profile h200-day --deadline +5d --grid windy --interruptible checkpoints",
        "lowtide plan -t 6:00:00 --power 300 --deadline +36h --signal DE.csv "
        "--now 2024-07-01T00:00Z --interruptible anywhere --policy wait_awhile --policy exact "
        "--explain",
    ),
    "when": (
        "lowtide when -t 6:00:00 --deadline +24h --signal DE.csv --now start",
        "lowtide when --profile h200 --deadline +2d --grid sunny",
    ),
    "tradeoff": (
        "lowtide tradeoff -t 8:00:00 --power 300 --deadline +2d --grid windy "
        "--interruptible anywhere",
        "lowtide tradeoff --profile h200 --deadline +2d --grid sunny",
    ),
    "plan-cluster": (
        "lowtide plan-cluster queue.toml",
        "lowtide plan-cluster queue.toml --set run.seed=3 --gap 0.01 --wait '3 g/node-h' "
        "--fair users --explain 7",
        "lowtide plan-cluster queue.toml --effort 0.1 --image plan.png --jobs-table plan.csv",
    ),
    "grid": (
        "lowtide grid windy --days 3",
        "lowtide grid DE.csv --from 2024-07-01T00:00Z --to +2d",
    ),
    "grid backtest": (
        "lowtide grid backtest --signal DE.csv --moments 4",
        "lowtide grid backtest --grid windy --moments 2 -t 6:00:00 --interruptible anywhere",
    ),
    "measure": (
        "lowtide measure --idle 0.5 -- sleep 1",
        "lowtide measure --idle 0.2 --event 'epoch_{}=epoch (\\d+)' -o training "
        "-- sh -c 'echo epoch 1; sleep 0.3; echo epoch 2; sleep 0.3'",
    ),
    "recording show": (
        "lowtide recording show h200 --run full_0",
        "lowtide recording show h200 --run full_0 --image h200.png",
    ),
    "run": (
        "lowtide run --finish-by +12h -t 2:00:00 --grid windy --dry-run -- sh train.sh",
        "lowtide run --finish-by 8am --profile h200 --grid sunny --pause --dry-run -- sh train.sh",
    ),
    "sbatch": (
        "lowtide sbatch --finish-by 8am --grid gb -t 2:00:00 train.sh",
        "lowtide sbatch --finish-by +2d --grid gb --profile h200 --saves --gpus=1 train.sh",
    ),
    "queue": ("lowtide queue --grid gb", "lowtide queue --all-users"),
    "queue report": ("lowtide queue report --days 30",),
    "queue waits": ("lowtide queue waits",),
    "queue release": ("lowtide queue release 4711",),
    "queue hold": ("lowtide queue hold 4711",),
    "queue forget": ("lowtide queue forget 4711_3",),
    "drive": ("lowtide drive --grid gb --once", "lowtide drive --grid gb --dry-run"),
    "login": (
        "lowtide login https://energy.example.org",
        "lowtide login --browser",
        "lowtide login https://energy.example.org --token",
    ),
    "logout": ("lowtide logout",),
    "serve": (
        "lowtide serve",
        "lowtide serve --store postgresql://lowtide@db/centre --config serve.toml",
    ),
    "serve tokens": (
        "lowtide serve tokens --store centre.sqlite --config serve.toml",
        "lowtide serve tokens --store centre.sqlite --config serve.toml --of ada --revoke-all",
    ),
    "serve mail": ("lowtide serve mail --dry-run --config serve.toml --store centre.sqlite",),
    "serve node-token": ("lowtide serve node-token n1 --store centre.sqlite --config serve.toml",),
    "mark": ("lowtide mark epoch_1", "lowtide mark saved_1 --checkpoint"),
    "convert": (
        "lowtide convert jobs.csv jobs.swf --start 2024-07-01T00:00Z",
        "lowtide convert profile.toml profile.json",
    ),
    "trace": (
        "lowtide trace jobs.csv",
        "lowtide trace jobs.csv --start 2024-07-01T00:00Z --signal DE.csv --cpus 8",
    ),
    "learn": (
        "lowtide learn h200",
        "lowtide learn h200 --no-events -o learned.toml --image learned.png",
    ),
    "learn check": ("lowtide learn check profile.toml h200",),
    "learn sizes": (
        "lowtide learn sizes e3 e5 e8 --by epochs --at epochs=40 -o long.toml",
        "lowtide learn sizes e3@files=10 e5@files=17 e8@files=29 --by files --at files=100",
    ),
    "model": ("lowtide model h200 --features gpu=gpu_util/100 -o gpu.json --card gpu.md",),
    "profiles learn": (
        "lowtide profiles learn --name 'train*' -S now-30days",
        "lowtide profiles learn --from-recordings h200",
    ),
    "profiles list": ("lowtide profiles list",),
    "profiles show": ("lowtide profiles show training",),
    "profiles diff": ("lowtide profiles diff training h200",),
    "simulate": (
        "lowtide simulate exp.toml --set policy.name=exact",
        "lowtide simulate exp.toml --set policy.name=oracle --set run.seed=3 --jobs-table jobs.csv",
    ),
    "sweep": (
        "lowtide sweep exp.toml -o results",
        "lowtide sweep exp.toml -j 1 --set policy.name=exact",
    ),
    "report": (
        "lowtide report worth-it-results",
        "lowtide report worth-it-results --baseline oracle --no-figures -o against-oracle.html",
    ),
    "reproduce thesis": (
        "lowtide reproduce thesis --only length=16h,wait=24h",
        "lowtide reproduce thesis --signal DE.csv --startup added --only length=8h,length=16h",
    ),
    "reproduce gaia": ("lowtide reproduce gaia --zone US-CAL-CISO --out gaia",),
    "reproduce wait-awhile": ("lowtide reproduce wait-awhile --zone fr",),
    "watch": (
        "lowtide watch",
        "lowtide watch --interval 5 --store node.sqlite",
        "lowtide watch --listen 127.0.0.1:9470 --token-file token --grid windy --pue 1.3",
    ),
    "watch follow": ("lowtide watch follow 4711 -o recording",),
    "node": ("lowtide node", "lowtide node --follow"),
    "show": (
        "lowtide show 4711",
        "lowtide show 4711 --grid windy",
        "lowtide show 4711 --signal DE.csv --wait 12h --interruptible anywhere --html 4711.html",
    ),
    "jobs": (
        "lowtide jobs -S now-30days --sort -energy",
        "lowtide jobs -u ada -s CD,F,OOM -o JobID%12,Elapsed,CPUEff,Energy,CO2e",
    ),
    "usage": ("lowtide usage", "lowtide usage --by hour -S now-7days"),
    "store info": ("lowtide store info",),
    "store check": ("lowtide store check",),
    "store prune": ("lowtide store prune", "lowtide store prune --older-than 365d --size 2G"),
    "store load": ("lowtide store load sonar.csv",),
    "store export": ("lowtide store export watched", "lowtide store export july -S 2024-07-01"),
    "stress plan": (
        "lowtide stress plan --shape latin --duration 10s --cpu 0-100 --disk 0-50 -o plan.toml",
        "lowtide stress plan --shape ramp --duration 5m --seed 1 --cpu 0-100 --gpu 20-80",
    ),
    "stress run": (
        "lowtide stress run load.toml",
        "lowtide stress run load.toml --without disk --job-id warm-up",
    ),
    "doctor": ("lowtide doctor",),
    "warm": ("lowtide warm",),
    "version": ("lowtide version --json",),
}


def epilog(verb: str) -> str:
    """Return the examples of a verb as they close its help."""
    # The backspace tells the help formatter to leave line breaks alone.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[verb])
