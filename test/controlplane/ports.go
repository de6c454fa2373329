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

// Ports are taken below the range that Linux gives to outgoing connections (from 32768): a port of that range that
// is free while its server is down may be somebody's local port by the time it is started again.
const (
	lowestPort  = 10000
	highestPort = 32767
)

// ports are where the servers listen on the loopback address.
type ports struct {
	Etcd      int `json:"etcd"`
	APIServer int `json:"apiServer"`
}

func (p ports) etcdURL() string      { return "https://" + loopback(p.Etcd) }
func (p ports) apiServerURL() string { return "https://" + loopback(p.APIServer) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// readPorts returns what choosePorts has kept.
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

// choosePorts returns the ports that the caller fixed, else the ones kept by an earlier choice, so that kubeconfigs
// stay valid, else free ones; and keeps them. It is an error if somebody listens there.
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
	return p, writeWhole(d.path("ports.json"), append(data, '\n'))
}

// freePort tries ports at random, so that control planes starting at the same moment seldom agree on one.
func freePort() (int, error) {
	const tries = 100
	var err error
	for range tries {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if err = checkFree(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("%d ports between %d and %d tried, the last: %w", tries, lowestPort, highestPort, err)
}

func checkFree(port int) error {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return l.Close()
}
