"""A fleet that no machine here could hold: what the written HAProxy configuration would decide for it.

| module | what it has |
|---|---|
| `hashing` | which replica a name hashes to, as HAProxy computes it |
| `tables` | a stick table: its size, its expiry, and what makes room |
| `rules` | the rules of `pyllmcancel/cluster/haproxy.cfg`: one process of a balancer |
| `workload` | sessions that type in bursts, and some that chat |
| `world` | replicas, balancers and live requests through time; what moves and what is missed |
| `churn` | the scenarios: replicas that come, go, die and hang, balancers that start again |
| `telling` | servers that tell each other: how many messages, and what they cost |
| `message_cost` | what one message costs, measured |

`tests/cluster/test_model.py` holds the model against a real HAProxy, request by request.
"""
