"""A server under load, measured from outside as its clients see it, with vLLM's names for what is measured.

load        what is asked of the server: requests, arrivals, and the service level objective
client      the process that asks, over HTTP; it imports nothing of labkit
drive       the clients together: started, watched, stopped
results     what the answers' times come to
server      a server in a process of its own, and what its /metrics say
command     `labkit bench serve` with a load of one's own
soak        hundreds of clients for minutes, some of which vanish or send garbage
"""
