"""`lowtide login` and `logout`: the centre of a cluster, by munge and without a password."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.cli.output import TABLE, Form, say, say_all, warn


def login(
    url: Annotated[
        str | None,
        typer.Argument(
            help="Where the centre is.  [default: where you are logged in]", metavar="[URL]"
        ),
    ] = None,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser",
            help="Print a link to its pages, and read the code that the browser shows.",
        ),
    ] = False,
    token: Annotated[
        bool, typer.Option("--token", help="Print a token for programs, and keep nothing.")
    ] = False,
    with_token: Annotated[
        bool,
        typer.Option(
            "--with-token",
            help="Read a token from standard input, made on the centre's page, where there is no "
            "munge.",
        ),
    ] = False,
    socket: Annotated[
        str, typer.Option(help="Where munge listens, if elsewhere than usual.", metavar="PATH")
    ] = "",
    form: Form = TABLE,
) -> None:
    """Log in to a centre: jobs, show and usage ask it then.

    Who may run jobs on the cluster has proved to munge who they are, and needs no password. What
    was read from this machine before is read from the centre until lowtide logout; --store names
    another place for one command.
    """
    import sys

    from lowtide.centre.account import (
        CentreLogin,
        checked_url,
        confirm_browser,
        prove_by_munge,
        read_login,
    )
    from lowtide.errors import InvalidInput

    if browser + token + with_token > 1:
        raise InvalidInput("a login is for one thing: --browser, --token or --with-token")
    if url is None:
        known = read_login()
        if known is None:
            raise InvalidInput("say where the centre is: lowtide login https://HOST")
        url = known.url
    base = checked_url(url)
    if browser or token:
        told = prove_by_munge(base, wants_token=token, socket=socket)
        confirm = told.pop("confirm", "")
        if browser:
            told["link"] = f"{base}/enter/{told['link']}"
        form.print([told], document=told, show=lambda: say(told["token" if token else "link"]))
        if browser:
            sys.stdout.flush()
            warn("Open it, and type the code that it shows here:")
            confirm_browser(base, confirm, sys.stdin.readline(100))
            warn("That is the code: go on in the browser.")
        return
    if with_token:
        secret = sys.stdin.readline(1000).strip()
    else:
        secret = prove_by_munge(base, wants_token=True, socket=socket)["token"]
    made = CentreLogin(base, "?", secret)
    user = str(made.ask("/api/v1/me").get("user", ""))
    CentreLogin(base, user, secret).save()
    found = {"url": base, "user": user}
    form.print(
        [found],
        document=found,
        show=lambda: say(
            f"You are {user} at {base}: lowtide jobs, show and usage ask it from now on."
        ),
    )


def logout(form: Form = TABLE) -> None:
    """Log out of the centre, and end the token that was kept.

    A centre that is away is told nothing: the token ends by itself, or its staff ends it.
    """
    from lowtide.centre.account import login_file, read_login
    from lowtide.errors import FileProblem, Refused, Unreachable

    try:
        known = read_login()
    except FileProblem:
        # What is no login any more is nothing to keep.
        known = None
    path = login_file()
    there, ended, words = path.exists(), False, []
    if there and known is not None:
        try:
            known.ask("/api/v1/token", method="DELETE")
            ended = True
        except (Refused, Unreachable) as error:
            words.append(f"The token could not be ended there: {error}")
    path.unlink(missing_ok=True)
    words.append(
        "You are logged out: lowtide jobs, show and usage read this machine's store."
        if there
        else "You are not logged in to any centre."
    )
    told = {"url": known and known.url, "logged_out": there, "token_ended": ended}
    form.print([told], document=told, show=lambda: say_all(words))
