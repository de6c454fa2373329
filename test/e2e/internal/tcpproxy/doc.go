// Package tcpproxy stands between a client and a server, and breaks what lies between them as networks do.
//
// A partition by [Proxy.Stall] is silent: connections stay open, new ones are accepted, and nothing gets through in either
// direction until [Proxy.Heal], which lets what was held up arrive late, as TCP's own retransmission does. One by
// [Proxy.Reset] is loud: every connection is reset, and so is every new one.
package tcpproxy
