"""`crossdraft serve --ray`: replicas of the server on a Ray cluster, and the proxy in front of them.

A replica is the whole server (`serve.app`) but for its network, with an engine and a drafter of its own: no round
crosses from one deployment to another. The proxy has the network, the keys and the limits of clients, and sends every
request about a clip to the same replica, whose prefix cache knows the clip.
"""
