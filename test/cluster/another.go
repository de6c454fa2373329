package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
)

// AddAPIServer starts another API server with the same etcd, and returns when it is ready. The returned Cluster has the
// config of this API server, and cannot control etcd. Its Stop stops only this API server, and must be called before
// that of c. If ctx is cancelled first, AddAPIServer removes everything that it created.
func (c *Cluster) AddAPIServer(ctx context.Context) (*Cluster, error) {
	added, err := c.addAPIServer(ctx)
	if err != nil {
		return nil, fmt.Errorf("add API server: %w", err)
	}
	return added, nil
}

func (c *Cluster) addAPIServer(ctx context.Context) (_ *Cluster, err error) {
	if c.up == nil {
		return nil, ErrExternal
	}
	dir, err := os.MkdirTemp("", "controlplane-")
	if err != nil {
		return nil, err
	}
	added := &Cluster{
		kubeconfig: filepath.Join(dir, "kubeconfig"), dir: dir, isTemp: true, isAdded: true,
		etcd: &Component{name: "etcd"}, apiServer: &Component{name: "apiserver", dir: dir},
	}
	defer func() {
		if err != nil {
			added.apiServer.release()
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := added.copyFrom(c); err != nil {
		return nil, err
	}
	if err := added.apiServer.Start(ctx); err != nil {
		return nil, err
	}
	return added, added.connect()
}

// copyFrom writes the files of an API server that has not run yet. The keys and the port of etcd are those of the
// cluster.
func (c *Cluster) copyFrom(cluster *Cluster) error {
	const (
		keys  = "pki"
		ports = "ports.json"
	)
	if err := os.WriteFile(filepath.Join(c.dir, c.apiServer.name+".pid"), nil, 0o600); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(c.dir, keys), os.DirFS(filepath.Join(cluster.dir, keys))); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(cluster.dir, ports))
	if err != nil {
		return err
	}
	var numbers map[string]int
	if err := json.Unmarshal(data, &numbers); err != nil {
		return err
	}
	port := freePort()
	numbers["apiServer"] = port
	if data, err = json.Marshal(numbers); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, ports), data, 0o600); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(cluster.kubeconfig)
	if err != nil {
		return err
	}
	for _, server := range config.Clusters {
		server.Server = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return clientcmd.WriteToFile(*config, c.kubeconfig)
}

// freePort returns a port that is free, and that Linux does not use for outgoing connections.
func freePort() int {
	for {
		const lowest, highest = 10000, 32767
		port := lowest + rand.IntN(highest-lowest)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			l.Close()
			return port
		}
	}
}
