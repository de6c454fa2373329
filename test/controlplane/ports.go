package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// Ports are chosen below the range that Linux uses for outgoing connections, which starts at 32768. Otherwise, while a
// server is down, another process's outgoing connection could use the server's port.
const (
	lowestPort  = 10000
	highestPort = 32767
)

// ports are the ports of the servers on the loopback address.
type ports struct {
	Etcd      int `json:"etcd"`
	APIServer int `json:"apiServer"`
}

func (p ports) etcdURL() string      { return "https://" + loopback(p.Etcd) }
func (p ports) apiServerURL() string { return "https://" + loopback(p.APIServer) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// readPorts returns the ports that choosePorts has stored.
func (d dir) readPorts() (ports, error) {
	var p ports
	data, err := os.ReadFile(d.path("ports.json"))
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("%s: %w", d.path("ports.json"), err)
	}
	return p, nil
}

// choosePorts returns and stores the ports of the servers. For each server, it uses the port in fixed. If that port is
// 0, it uses the port that an earlier call stored, so that kubeconfigs stay valid. If no port is stored, it chooses a
// free port. It returns an error if a fixed or stored port is in use.
func (d dir) choosePorts(fixed ports) (ports, error) {
	p, err := d.readPorts()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	for _, c := range []struct {
		server string
		fixed  int
		port   *int
	}{
		{"etcd", fixed.Etcd, &p.Etcd},
		{"the API server", fixed.APIServer, &p.APIServer},
	} {
		if c.fixed != 0 {
			*c.port = c.fixed
		}
		if *c.port == 0 {
			*c.port, err = freePort()
		} else {
			err = checkFree(*c.port)
		}
		if err != nil {
			return p, fmt.Errorf("no port for %s: %w", c.server, err)
		}
	}
	if p.Etcd == p.APIServer {
		return p, fmt.Errorf("etcd and the API server cannot share port %d", p.Etcd)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return p, err
	}
	return p, writeFileAtomically(d.path("ports.json"), append(data, '\n'))
}

// freePort tries random ports, so that control planes that start at the same time rarely choose the same port.
func freePort() (int, error) {
	const tries = 100
	var err error
	for range tries {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if err = checkFree(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port after %d attempts between %d and %d; last error: %w",
		tries, lowestPort, highestPort, err)
}

func checkFree(port int) error {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return l.Close()
}
