#!/bin/sh
# Requests to the HTTP API of `tidegate serve --demo`, by curl.
#
#     tidegate serve --demo &
#     sh http_api.sh
set -eu
url=${TIDEGATE_URL:-http://127.0.0.1:8080}

# Posts the JSON of the second argument to an endpoint, and prints the response.
post() {
    curl --silent --show-error --header 'Content-Type: application/json' --data "$2" "$url/v1/$1"
    echo
}

# By rules: the domain and descriptors of a rule file.
post check '{"domain": "demo", "descriptors": [{"entries": [{"key": "user", "value": "eve"}]}]}'

# The same count, by the gate of the rule and a key. Nothing is charged.
post peek '{"gate": "demo.user", "key": "eve"}'

# A gate that no rule has, with its quota. A service that links the library shares its counts.
quota='{"algorithm": "token_bucket", "burst": 200, "requests_per_unit": 100, "unit": "minute"}'
post check '{"gate": "mail", "key": "tenant:7", "cost": 2, "quota": '"$quota"'}'

# Several gates, all or none.
post check_all '{"checks": [{"gate": "demo.user", "key": "eve"},
                            {"gate": "mail", "key": "tenant:7", "quota": '"$quota"'}]}'

# An estimate now, the actual units later.
reserved=$(post reserve '{"checks": [{"gate": "mail", "key": "tenant:7", "cost": 50, "quota": '"$quota"'}]}')
token=$(echo "$reserved" | sed 's/.*"token":"\([^"]*\)".*/\1/')
post commit '{"token": "'"$token"'", "actuals": [31]}'

# At most two operations at the same time.
acquired=$(post acquire '{"checks": [{"gate": "exports", "key": "tenant:7", "quota": {"in_flight": 2}}], "ttl_ms": 30000}')
permit=$(echo "$acquired" | sed 's/.*"permit":{"id":"\([^"]*\)".*/\1/')
post release '{"permit": "'"$permit"'"}'
