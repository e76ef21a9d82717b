"""A client of tidegate's HTTP API, by the standard library alone.

    tidegate serve --demo &
    python3 http_api.py
"""

import contextlib
import json
import os
import urllib.error
import urllib.request


class Problem(Exception):
    """A request that was not decided: `kind` is stable, the text says what to do."""

    def __init__(self, body):
        super().__init__(body["detail"])
        self.kind = body["type"].removeprefix("urn:tidegate:problem:")
        self.status = body["status"]


class Tidegate:
    """Posts requests to a server. A denial (429) is a decision, and no exception."""

    def __init__(self, url, timeout_s=1.0):
        self.url = url
        self.timeout_s = timeout_s

    def post(self, endpoint, **fields):
        """Returns the decision: see `allowed`, `retry_after_us`, `decision`."""
        request = urllib.request.Request(
            f"{self.url}/v1/{endpoint}",
            data=json.dumps(fields).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            body = json.load(error)
            if error.code == 429:
                return body
            raise Problem(body) from None

    @contextlib.contextmanager
    def permit(self, ttl_s, **fields):
        """Holds units of in-flight limits for a block. Yields the decision: see `allowed`."""
        acquired = self.post("acquire", ttl_ms=int(ttl_s * 1000), **fields)
        # None also for an admission that holds nothing, such as in shadow mode.
        permit = acquired.get("permit")
        try:
            yield acquired
        finally:
            if permit:
                # A permit that has expired needs no release.
                with contextlib.suppress(Problem):
                    self.post("release", permit=permit["id"])


def main():
    limits = Tidegate(os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080"))

    # By rules: the domain and descriptors of a rule file.
    login = {"entries": [{"key": "user", "value": "mallory"}]}
    for attempt in range(1, 7):
        decided = limits.post("check", domain="demo", descriptors=[login])
        if decided["allowed"]:
            print(f"attempt {attempt}: admitted, {decided['decision']['remaining']} left")
        else:
            wait_s = decided["retry_after_us"] / 1_000_000
            print(f"attempt {attempt}: denied, try again in {wait_s:.0f} s")

    # By a gate that no rule has, with its quota. All or none are charged.
    quota = {"algorithm": "token_bucket", "burst": 1000, "requests_per_unit": 1000, "unit": "minute"}
    tokens = {"gate": "llm.tokens", "key": "tenant:7", "cost": 400, "quota": quota}
    reserved = limits.post("reserve", checks=[tokens], ttl_ms=120_000)
    if reserved.get("reservation"):
        # ... the work, which took 120 tokens
        settled = limits.post("commit", token=reserved["reservation"]["token"], actuals=[120])
        print("reservation:", settled["settlements"][0])

    # At most one operation at the same time.
    export = {"gate": "python.exports", "key": "tenant:7", "quota": {"in_flight": 1}}
    with limits.permit(30, checks=[export]) as first:
        print("export runs:", first["allowed"])
        with limits.permit(30, checks=[export]) as second:
            print("second export runs:", second["allowed"])

    # A mistake says what to do.
    try:
        limits.post("check", gate="demo.users", key="eve")
    except Problem as problem:
        print(f"{problem.kind}: {problem}")


if __name__ == "__main__":
    main()
