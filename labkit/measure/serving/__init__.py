"""A server under load, measured from outside as its clients see it, with vLLM's names for the metrics.

load        the load on the server: requests, arrivals, and the service level objective
client      the process that sends requests, over HTTP; it imports nothing of labkit
drive       the clients together: started, watched, stopped
results     summaries of the answers' times
server      a server in a process of its own, and its /metrics
command     `labkit bench serve` with a load of one's own
"""
