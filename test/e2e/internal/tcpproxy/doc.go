// Package tcpproxy provides a TCP proxy between a client and a server. The proxy simulates network failures.
//
// [Proxy.Stall] causes a silent partition: connections stay open, new connections are accepted, and no data passes in
// either direction until [Proxy.Heal]. Delayed data is then delivered, as after a TCP retransmission. [Proxy.Reset]
// causes an explicit failure: all existing and new connections are reset.
package tcpproxy
