"""The commands: `modrl train FILE`, `modrl eval RUN_DIR`, … Exit status: 0 done, 1 failed, 2 bad input, 130 and 75 interrupted."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from modrl.bench import Result
    from modrl.experiment import Experiment
    from modrl.rundir import RunDir
    from modrl.scheme.scheme import Scheme
    from modrl.scheme.settings import Collection, Workers
    from modrl.verify import Outcome

app = typer.Typer(
    name="modrl",
    help="Modular reinforcement learning: one agent, any distributed scheme.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

File = Annotated[Path, typer.Argument(help="an experiment file (YAML)")]
Overrides = Annotated[list[str] | None, typer.Argument(help="settings to change: key.path=value", metavar="[key.path=value]...")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
RunDirectory = Annotated[Path, typer.Argument(help="a run's directory")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from modrl.rundir import version

        print(f"modrl {version('modrl')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")] = False,
) -> None:
    pass


@app.command()
def train(
    file: File,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="the run's own directory (default: runs/NAME/DATE-TIME-seed)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="start, or continue from the newest checkpoint in --run-dir")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="write what every worker does when, as trace.json for ui.perfetto.dev")] = False,
) -> None:
    """Run an experiment, with live progress."""
    from modrl.display import Display
    from modrl.experiment import Experiment
    from modrl.interrupt import Interrupted
    from modrl.rundir import RunDir

    experiment = Experiment.load(file, overrides or [])
    origin = RunDir(file.parent)
    if file.name == origin.experiment.name and origin.info.exists() and (run_dir is None or run_dir.resolve() != file.parent.resolve()):
        _say_what_differs(origin)
    run, directory = experiment.prepare(run_dir, resume, profile)
    if run is None:
        out.print(f"{directory.path}: finished already, {experiment.steps:,} steps; nothing to do", soft_wrap=True)
        return
    try:
        with Display(out, f"{experiment.name} · {_title(experiment.scheme)} · seed {experiment.seed}", experiment.steps) as display:
            for row in run.stream():
                display.show(row)
    except Interrupted as error:
        again = shlex.join(["modrl", "train", str(file), *(overrides or []), "--run-dir", str(directory.path), "--resume"])
        err.print(f"{error}\ngo on with: {again}", markup=False, soft_wrap=True)
        raise typer.Exit(130 if error.signal == signal.SIGINT else 75) from None
    out.print(f"run directory: {directory.path}", soft_wrap=True)
    if profile:
        out.print(f"its profile, for ui.perfetto.dev: {directory.newest_trace()}", soft_wrap=True)


def _say_what_differs(origin: RunDir) -> None:
    """Whether the run in a directory, trained again, has the surroundings that it had."""
    from modrl.rundir import differences

    found = differences(origin.read_info())
    err.print(f"the run of {origin.path}, again; " + ("what differs from then:" if found else "nothing differs from then"), soft_wrap=True)
    for line in found:
        err.print(f"  {line}", markup=False, soft_wrap=True)


def _title(scheme: Scheme.Config) -> str:
    """What to call it: by its preset, and whether anything is changed over that."""
    if scheme.preset is None:
        return "own scheme"
    return scheme.preset if scheme == type(scheme)(preset=scheme.preset) else f"{scheme.preset}, changed"


@app.command(name="eval")
def evaluate(
    run_dir: RunDirectory,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="whole episodes to play")] = 10,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions instead of taking the most likely one")] = False,
    video: Annotated[Path | None, typer.Option(help="a folder to record the episodes into")] = None,
    checkpoint: Annotated[str, typer.Option(help="the checkpoint's env steps, latest or best")] = "latest",
    seed: Annotated[int | None, typer.Option(min=0, help="seed of the episodes (default: evaluation.seed)")] = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes with a run's policy: raw reward, greedy unless --sample."""
    from modrl.policy import play

    result = play(run_dir, episodes, greedy=not sample, video=video, checkpoint=checkpoint, seed=seed)
    if as_json:
        print(json.dumps({"episodes": len(result.returns), "mean_return": result.mean_return, **result._asdict()}))
        return
    table = Table("episode", "return", "length", box=None, header_style="bold")
    for index, (reward, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        table.add_row(str(index + 1), f"{reward:g}", str(length))
    out.print(table)
    out.print(f"mean return {result.mean_return:g} over {len(result.returns)} episodes ({'sampled' if sample else 'greedy'} actions)")


@app.command()
def export(
    run_dir: RunDirectory,
    out_file: Annotated[Path, typer.Option("--out", help="the file to write: .pt (TorchScript) or .onnx (ONNX)")],
    checkpoint: Annotated[str, typer.Option(help="the checkpoint's env steps, latest or best")] = "latest",
    batch: Annotated[int, typer.Option(min=1, help="environments that the file acts for at once")] = 1,
) -> None:
    """Write a run's greedy policy as a file that needs no modrl, and check that it acts alike."""
    from modrl.export import export as write

    metadata = write(run_dir, out_file, checkpoint, batch)
    table = Table("input", "shape", "dtype", box=None, header_style="bold")
    for name, of in metadata["inputs"].items():
        table.add_row(name, "×".join(map(str, of["shape"])), of["dtype"])
    out.print(table)
    out.print(f"{out_file}: gives {', '.join(metadata['outputs'])}; acts as the policy does", soft_wrap=True, markup=False)


@app.command()
def replay(
    dump: Annotated[Path, typer.Argument(help="a dump of a run that ended with a number that is not finite, or the run's directory")],
    overrides: Overrides = None,
) -> None:
    """Compute a loss that was not finite again, and say where that begins."""
    from modrl.replay import replay as again

    result = again(dump, overrides or [])
    out.print(f"{result.dump}, of {result.worker or 'the run'}", soft_wrap=True, markup=False)
    if not result.where:
        out.print("computed again, all is finite", soft_wrap=True)
        raise typer.Exit(1)
    out.print(f"not finite, computed again: {result.where}", soft_wrap=True, markup=False)


@app.command()
def plot(
    run_dirs: Annotated[list[Path], typer.Argument(help="runs' directories")],
    out_file: Annotated[Path, typer.Option("--out", help="the picture to write (.png, .svg or .pdf)")] = Path("curves.png"),
) -> None:
    """Draw learning curves, against env steps and against wall time; seeds grouped."""
    from modrl.plotting import plot as draw

    out.print(str(draw(run_dirs, out_file)), soft_wrap=True)


@app.command(name="list")
def list_components(kind: Annotated[str | None, typer.Argument(help="one kind only")] = None) -> None:
    """List the components that files can name, with their settings."""
    from modrl import experiment  # noqa: F401 (registers the components)
    from modrl.config import REGISTRY, ConfigError, Problem, builtins_of, nearest

    if kind is not None and kind not in REGISTRY:
        meant = nearest(kind, REGISTRY)
        raise ConfigError(
            [Problem((), f"no kind is called {kind!r}; {f'did you mean {meant!r}?' if meant else 'known are ' + ', '.join(REGISTRY)}")],
            "the command line",
        )
    table = Table("kind", "name", "settings and their defaults", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for known in sorted(REGISTRY) if kind is None else [kind]:
        for index, (name, component) in enumerate(builtins_of(known).items()):
            fields = ", ".join(
                f"{key}{'' if field.is_required() else f': {_as_written(field.get_default(call_default_factory=True))}'}"
                for key, field in component.Config.model_fields.items()
            )
            table.add_row(known if index == 0 else "", name, fields)
    out.print(table)


def _as_written(value: Any) -> str:
    """A setting's value as a file would have it; a component that has all its defaults is its name."""
    from modrl.config import Settings, dump

    if isinstance(value, Settings):
        plain = dump(value)
        value = plain["name"] if "name" in plain and value == type(value)() else plain
    return json.dumps(value)


@app.command()
def schemes(name: Annotated[str | None, typer.Argument(help="one scheme, or a file of one, NAME.yaml: as a picture and as its file")] = None) -> None:
    """List the named schemes, or draw one and print its file."""
    from modrl.config import BadInput, Document, validate
    from modrl.diagram import draw
    from modrl.scheme.presets import expand, preset_text, presets
    from modrl.scheme.scheme import Scheme

    if name is not None:
        try:
            document = expand(Document({"preset": name}, {}))
            if {"envs", "scheme"} & document.data.keys():
                raise BadInput(f"{name} is an experiment, not a scheme; `modrl explain {name}` says what its scheme is and implies")
            config = validate(Scheme.Config, document, name)
        except BadInput:
            raise
        except ValueError as error:
            raise BadInput(str(error)) from None
        text = preset_text(name) if name in presets() else Path(name).read_text("utf-8")
        out.print(draw(config), text.rstrip(), sep="\n\n", markup=False, soft_wrap=True)
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    words = Table("scheme", "what it is", box=None, header_style="bold", padding=(0, 2, 0, 0))
    narrow = {"scheme": None, "collection": 18, "gradient": 8, "update": None, "policy lag bound": 6, "gradient lag bound": 8}
    for header, width in narrow.items():
        table.add_column(header, max_width=width)
    for known in presets():
        config = Scheme.Config(preset=known)
        update = config.update if isinstance(config.update, str) else f"average {config.average_every}"
        lags = "–" if (bound := config.lag_bound()) is None else str(bound), str(config.gradient_lag_bound())
        table.add_row(known, _collection(config.collection), _group(config.gradient), update, *lags)
        words.add_row(known, _first_sentence(preset_text(known)))
    out.print(table, "", words, sep="\n")


def _first_sentence(text: str) -> str:
    """Of the comment that a file begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return comment.partition(". ")[0].rstrip(".") + "."


def _group(group: Workers, *extras: str) -> str:
    gather = [] if group.gather == "all" else [f"gather {group.gather}"]
    return f"{group.place} × {group.workers}\n{', '.join([*gather, *extras])}".rstrip()


def _collection(collection: Collection) -> str:
    extras = {f"ahead {collection.ahead}": collection.ahead, "preemption": collection.preemption, "server": collection.inference != "collector"}
    return _group(collection, *(extra for extra, there in extras.items() if there))


@app.command()
def schema() -> None:
    """Print the JSON Schema of experiment files, for editors."""
    from modrl.config import json_schema
    from modrl.experiment import Experiment

    print(json.dumps(json_schema(Experiment), indent=2))


@app.command()
def explain(file: File, overrides: Overrides = None) -> None:
    """Say what an experiment is and implies, and where each value comes from."""
    from modrl.experiment import Experiment
    from modrl.explain import implications, values

    experiment = Experiment.load(file, overrides or [])
    for lines in (list(values(experiment, file, overrides or [])), list(implications(experiment))):
        table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
        for what, why in lines:
            table.add_row(escape(what), escape(why))
        out.print(table)
        out.print()


@app.command()
def verify(
    file: File,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="a run's directory to keep the report in, as verify.json")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that schemes which must agree do agree, with this experiment's own agent; exit status 1 if any does not."""
    from modrl.experiment import Experiment
    from modrl.verify import checks

    experiment = Experiment.load(file, overrides or [])
    if run_dir is not None and not run_dir.is_dir():
        from modrl.config import BadInput

        raise BadInput(f"--run-dir: there is no {run_dir}; the report is kept beside a run, in its directory")
    outcomes: list[Outcome] = []
    with checks(experiment) as made:
        for outcome in made.run():
            outcomes.append(outcome)
            if not as_json:
                _show_outcome(outcome)
    passed = all(outcome.passed is not False for outcome in outcomes)
    failed = sum(outcome.passed is False for outcome in outcomes)
    skipped = sum(outcome.passed is None for outcome in outcomes)
    counts = {"agree": len(outcomes) - failed - skipped, "disagree": failed, "do_not_apply": skipped}
    report = {"passed": passed, "experiment": experiment.name, **counts, "pairs": [outcome._asdict() for outcome in outcomes]}
    if run_dir is not None:
        (run_dir / "verify.json").write_text(json.dumps(report, indent=2), "utf-8")
    if as_json:
        print(json.dumps(report))
    else:
        out.print(f"{counts['agree']} agree, {failed} disagree, {skipped} do not apply")
    if not passed:
        raise typer.Exit(1)


def _show_outcome(outcome: Outcome) -> None:
    word, style = {True: ("agree", "green"), False: ("DISAGREE", "bold red"), None: ("–", "dim")}[outcome.passed]
    measured = ""
    if outcome.error is not None and outcome.tolerance is not None and "bounds" not in outcome.name and "lags" not in outcome.name:
        measured = "bit by bit" if outcome.tolerance == 0 == outcome.error else f"error {outcome.error:.1e}, tolerance {outcome.tolerance:.0e}"
    out.print(f"[{style}]{word:<9}[/]{escape(outcome.name)}  [dim]{escape('; '.join(filter(None, [measured, outcome.detail])))}[/]", soft_wrap=True)


@app.command()
def bench(
    file: Annotated[Path | None, typer.Argument(help="an experiment file (YAML); without one, IMPALA on Pong")] = None,
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=1, help="figures are medians over so many rounds")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="for each part in each round; the whole runs twice as long")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Measure throughput against the machine's own limit: each part alone, then the whole, in turns."""
    from modrl.bench import STANDARD, measure
    from modrl.config import Document, merge, override, validate
    from modrl.experiment import Experiment

    texts = overrides or []
    if file is not None and "=" in file.name and not file.exists():  # an override where no file is named
        file, texts = None, [str(file), *texts]
    if file is None:
        document = Document(STANDARD, {})
        for text in texts:
            document = merge(document, override(text))
        experiment = validate(Experiment, document, "the standard experiment")
    else:
        experiment = Experiment.load(file, texts)
    with err.status("measuring", spinner="line") as status:
        result = measure(experiment, rounds, seconds, lambda done: status.update(f"measuring: {done} of {rounds} rounds"))
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    _show_bench(experiment, result)


def _show_bench(experiment: Experiment, result: Result) -> None:
    from modrl.config import counted

    machine = f"{counted(result.cores, 'core')}, {experiment.machine.precision}"
    gpu = any(cost.gpu for cost in result.parts.values())
    out.print(f"[bold]{escape(experiment.name)}[/], {escape(_title(experiment.scheme))}; {machine}; µs per env step", soft_wrap=True)
    table = Table("part", *["core", "GPU"][: 1 + gpu], box=None, header_style="dim", pad_edge=False)
    for name, cost in result.parts.items():
        table.add_row({"env": "environments", "act": "acting", "learn": "learning"}[name], *[f"{1e6 * value:,.0f}" for value in cost[: 1 + gpu]])
    out.print(table)
    rates = [f["efficiency"] for f in result.rounds]
    out.print(f"roofline    {result.roofline:>9,.0f} steps/s, where nobody waits and nothing else is done")
    out.print(
        f"the whole   {result.steps_per_second:>9,.0f} steps/s: efficiency [bold]{result.efficiency:.2f}[/] ({min(rates):.2f} to {max(rates):.2f})"
    )
    for who, shares in (("collectors", result.collectors), ("gradient workers", result.learners)):
        if shares:
            listed = ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items() if share >= 0.005)
            out.print(f"[dim]{who}:[/] {listed}", soft_wrap=True)
    for words in result.advice:
        out.print(escape(words[0].upper() + words[1:]) + ".", soft_wrap=True)


def main() -> NoReturn:
    """Runs a command and exits with its status."""
    from modrl.config import BadInput

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("modrl").setLevel(logging.INFO)
    try:
        app(standalone_mode=True)
    except BadInput as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from modrl.envs.member import EnvError
        from modrl.scheme.places.base import WorkerError

        if not isinstance(error, (WorkerError, EnvError, FloatingPointError, OSError)):
            raise
        _fail(str(error), 1)
    sys.exit(0)


def _fail(text: str, status: int) -> NoReturn:
    err.print(text, style="red" if err.is_terminal else None, markup=False, soft_wrap=True)
    sys.exit(status)
