package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options configures Start. The zero value is valid.
type Options struct {
	// Dir is the directory for data, logs and other files. Starting a cluster in the directory of an earlier one continues
	// that cluster. Defaults to a temporary directory, which is removed when the cluster is stopped.
	Dir string
	// WithControllers enables garbage collection of owned objects, deletion of namespaces and aggregation of cluster
	// roles. For a newly defined type, garbage collection can take a second or two.
	WithControllers bool
	// Log, if not nil, receives the standard error of the binary, which includes reports from crashed servers. One
	// goroutine writes to Log until Stop returns.
	Log io.Writer
}

// Cluster is a control plane that was started by Start, or an external one returned by Connect. Its methods can be
// called concurrently.
type Cluster struct {
	kubeconfig string
	config     *rest.Config
	// transport is the transport that client-go uses for every client created from config. It is stored so that its
	// connections can be closed: client-go drops its own reference to the transport when the last client is gone.
	transport       http.RoundTripper
	etcd, apiServer *Component

	up       *process // Nil for an external cluster.
	stderr   *tail    // The standard error of up. It is read only after up has exited.
	dir      string
	isTemp   bool
	isAdded  bool // by AddAPIServer
	stopOnce sync.Once
	stopErr  error
}

// Start starts a control plane and returns when it is ready, which takes a few seconds. If ctx is cancelled first,
// Start removes everything that it created. After Start has returned, ctx has no effect.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c, err := start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	return c, nil
}

func start(ctx context.Context, options Options) (_ *Cluster, err error) {
	c := &Cluster{dir: options.Dir, stderr: &tail{}}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "controlplane-"); err != nil {
			return nil, err
		}
		c.isTemp = true
	} else if c.dir, err = filepath.Abs(c.dir); err != nil {
		return nil, err
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	c.etcd = &Component{name: "etcd", dir: c.dir}
	c.apiServer = &Component{name: "apiserver", dir: c.dir}
	defer func() {
		if err != nil && c.isTemp {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
	}()

	args := []string{"up", "--dir", c.dir}
	if c.isTemp {
		args = append(args, "--rm") // Remove the directory even if this process is killed.
	}
	if options.WithControllers {
		args = append(args, "--with-controllers")
	}
	stderr := io.Writer(c.stderr)
	if options.Log != nil {
		stderr = io.MultiWriter(c.stderr, options.Log)
	}
	c.up, err = startProcess(stderr, func(line string) bool { return strings.HasPrefix(line, "ready in ") }, args...)
	if err != nil {
		return nil, err
	}
	if err := c.up.waitReady(ctx, upGrace, c.stderr.String); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		c.up.stop(upGrace)
		return nil, err
	}
	return c, nil
}

// Connect returns the external cluster that a kubeconfig refers to. The cluster's components cannot be stopped or
// started, and Stop only closes the connections to the cluster.
func Connect(kubeconfig string) (*Cluster, error) {
	c := &Cluster{kubeconfig: kubeconfig, etcd: &Component{name: "etcd"}, apiServer: &Component{name: "apiserver"}}
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// connect loads the kubeconfig and creates the transport. It does not open a connection.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	c.config = config
	c.transport, err = rest.TransportFor(config)
	return err
}

// Config returns a copy of the administrator's config, without client-side throttling.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// APIServer returns the API server.
func (c *Cluster) APIServer() *Component { return c.apiServer }

// Etcd returns the etcd server that stores the data of the API server.
func (c *Cluster) Etcd() *Component { return c.etcd }

// WaitReady waits until the API server reports that it is ready and can read from etcd.
func (c *Cluster) WaitReady(ctx context.Context) error {
	const (
		interval       = 20 * time.Millisecond
		requestTimeout = 2 * time.Second // A paused server does not respond.
	)
	client := &http.Client{Transport: c.transport, Timeout: requestTimeout}
	// After etcd has failed, it can take about a second until readyz reports a failure. Reading an object always requires
	// etcd.
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for {
			err := getOK(ctx, client, c.config.Host+path)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("API server is not ready: %w", errors.Join(context.Cause(ctx), err))
			case <-time.After(interval):
			}
		}
	}
	return nil
}

func getOK(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}

// Stop stops all processes of the cluster and waits until they have exited, which takes a second or two. It returns an
// error if a process had to be killed or had already exited. Further calls return the same error.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		switch {
		case c.up != nil:
			c.stopErr = c.stop()
		case c.isAdded:
			c.apiServer.release()
			c.stopErr = os.RemoveAll(c.dir)
		}
		utilnet.CloseIdleConnectionsFor(c.transport)
	})
	return c.stopErr
}

func (c *Cluster) stop() error {
	var errs []error
	if c.up.hasExited() {
		errs = append(errs, fmt.Errorf("control plane exited before Stop (%s): %s", c.up.cmd.ProcessState, c.stderr))
	}
	// The API server shuts down gracefully only while etcd is running, so the API server is stopped first.
	c.apiServer.release()
	if !c.up.stop(upGrace) {
		errs = append(errs, fmt.Errorf("control plane did not exit within %s and was killed: %s", upGrace, c.stderr))
	}
	c.etcd.release()
	if c.isTemp {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
