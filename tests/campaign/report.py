"""Figures of a campaign by its journal, as tables for the documents, and the time line of an episode.

python -m tests.campaign.report JOURNAL [--picture FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Episodes = Sequence[dict[str, Any]]


def read_journal(path: Path) -> Episodes:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def world_of(episode: dict[str, Any]) -> str:
    world = episode["world"]
    named = {"version": "Kafka", "transaction_version": "transaction version"}
    kafka = ", ".join(f"{name} {world[key]}" for key, name in named.items() if key in world)
    return f"{world['brokers']} broker{'s' if world['brokers'] > 1 else ''}, {kafka}"


def summed(episodes: Episodes, field: str) -> Counter[str]:
    return sum((Counter(each[field]) for each in episodes), Counter[str]())


def table(heading: str, rows: Iterable[tuple[str, Any]]) -> Iterator[str]:
    yield f"\n| {heading} | |\n|---|---|"
    for name, value in rows:
        yield f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |"


def figures(episodes: Episodes) -> Iterator[str]:
    """Yield the lines of the tables."""
    faults, frames = summed(episodes, "faults"), summed(episodes, "frames")
    recovered = [each["recovered_s"] for each in episodes]
    yield from table(
        "campaign",
        (
            ("episodes", len(episodes)),
            ("hours", f"{sum(each['minutes'] for each in episodes) / 60:.1f}"),
            ("faults", faults.total() + frames.total()),
            ("rows", sum(each["rows"] for each in episodes)),
            ("versions and micro-batches", sum(each["units"] for each in episodes)),
            ("starts of writers", sum(each["starts"] for each in episodes)),
            (
                "seconds until all writers write again: median, largest",
                f"{median(recovered):.0f}, {max(recovered):.0f}",
            ),
            ("things wrong", sum(len(each["wrong"]) for each in episodes)),
        ),
    )
    yield from table("fault", faults.most_common())
    by_api = Counter[str]()
    for name, count in frames.items():
        by_api[name.split()[0]] += count
    yield from table("frames harmed", by_api.most_common())
    yield from table("cluster", Counter(world_of(each) for each in episodes).most_common())
    writers = Counter(writer.removesuffix(" through the proxy") for each in episodes for writer in each["writers"])
    yield from table("writer", writers.most_common())
    yield from table("deleted by people", Counter(each["people"] for each in episodes if each["people"]).most_common())
    yield from table("error of a writer that ended", summed(episodes, "codes").most_common())


def draw(episode: dict[str, Any], file: Path) -> None:
    """Draw each fault of an episode as a bar, with a row per kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    spans = [(begins, ends, name) for begins, ends, name in episode["timeline"]]
    first = min(begins for begins, _, _ in spans)
    kinds = list(dict.fromkeys(name for _, _, name in spans))
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.22 * len(kinds)), layout="constrained")
    for begins, ends, name in spans:
        axes.barh(kinds.index(name), max(ends - begins, 1), left=begins - first, height=0.7, alpha=0.7)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first fault")
    axes.spines[["top", "right"]].set_visible(False)
    title = f"Faults of one episode: {world_of(episode)}; {'; '.join(episode['writers'])}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--picture", type=Path, help="a PNG of the episode with the most kinds of faults")
    given = parser.parse_args()
    episodes = read_journal(given.journal)
    print("\n".join(figures(episodes)))
    if given.picture:
        draw(max(episodes, key=lambda each: (len(each["faults"]), len(each["timeline"]))), given.picture)


if __name__ == "__main__":
    main()
