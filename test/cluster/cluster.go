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

// Options are what Start may be told. The zero value is good.
type Options struct {
	// Dir keeps everything, data and logs too, and another Start on it finds the same cluster. Defaults to a temporary
	// directory, which ends with the cluster.
	Dir string
	// WithControllers has owner references cascade, namespaces end and cluster roles aggregate as in any cluster. For
	// a type that was just defined that takes a second or two.
	WithControllers bool
	// Log gets what the binary writes to stderr, such as that a server has died. Defaults to nothing. It is written to
	// by one goroutine, until Stop returns.
	Log io.Writer
}

// Cluster is a control plane that was started here, or one that Connect was pointed at. Its methods may be called
// concurrently.
type Cluster struct {
	kubeconfig string
	config     *rest.Config
	// transport is what client-go gives to every client made from config. It is kept to be closed, since client-go
	// itself forgets it with the last client.
	transport       http.RoundTripper
	etcd, apiServer *Part

	up       *process // nil if the cluster is foreign
	errors   *tail    // of up; read only once it has ended
	dir      string
	isTemp   bool
	stopOnce sync.Once
	stopErr  error
}

// Start starts a control plane and returns when it is ready, which takes a few seconds. When ctx ends first nothing is
// left of it; later ctx has no meaning.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c, err := start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	return c, nil
}

func start(ctx context.Context, options Options) (_ *Cluster, err error) {
	c := &Cluster{dir: options.Dir, errors: &tail{}}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "controlplane-"); err != nil {
			return nil, err
		}
		c.isTemp = true
	} else if c.dir, err = filepath.Abs(c.dir); err != nil {
		return nil, err
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	c.etcd = &Part{name: "etcd", dir: c.dir}
	c.apiServer = &Part{name: "apiserver", dir: c.dir}
	defer func() {
		if err != nil && c.isTemp {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
	}()

	args := []string{"up", "--dir", c.dir}
	if c.isTemp {
		args = append(args, "--rm") // so that the directory goes too when this process is killed
	}
	if options.WithControllers {
		args = append(args, "--with-controllers")
	}
	stderr := io.Writer(c.errors)
	if options.Log != nil {
		stderr = io.MultiWriter(c.errors, options.Log)
	}
	c.up, err = startProcess(stderr, func(line string) bool { return strings.HasPrefix(line, "ready in ") }, args...)
	if err != nil {
		return nil, err
	}
	if err := c.up.waitReady(ctx, upGrace, c.errors.String); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		c.up.stop(upGrace)
		return nil, err
	}
	return c, nil
}

// Connect returns the cluster of a kubeconfig. Its parts cannot be broken, and Stop only closes connections to it.
func Connect(kubeconfig string) (*Cluster, error) {
	c := &Cluster{kubeconfig: kubeconfig, etcd: &Part{name: "etcd"}, apiServer: &Part{name: "apiserver"}}
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// connect makes no connection yet.
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

// Config returns a config of the administrator's, without client-side throttling. The caller may change it.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the file of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// APIServer returns the API server, to be broken.
func (c *Cluster) APIServer() *Part { return c.apiServer }

// Etcd returns the API server's database, to be broken.
func (c *Cluster) Etcd() *Part { return c.etcd }

// WaitReady returns when the API server says that it is ready, and answers from etcd.
func (c *Cluster) WaitReady(ctx context.Context) error {
	const (
		pause   = 20 * time.Millisecond
		tooLong = 2 * time.Second // for one answer; a server may be paused
	)
	client := &http.Client{Transport: c.transport, Timeout: tooLong}
	// For a second or so the API server does not notice that it has lost etcd. Reading an object goes there.
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for {
			err := getOK(ctx, client, c.config.Host+path)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the API server is not ready: %w", errors.Join(context.Cause(ctx), err))
			case <-time.After(pause):
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
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// Stop ends the cluster and everything that was started for it, and returns when it is gone; it takes a second or two.
// It is an error if something had to be killed or had ended before. Called again it returns the same.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		if c.up != nil {
			c.stopErr = c.stop()
		}
		utilnet.CloseIdleConnectionsFor(c.transport)
	})
	return c.stopErr
}

func (c *Cluster) stop() error {
	var errs []error
	if c.up.hasEnded() {
		errs = append(errs, fmt.Errorf("the control plane had ended before (%s): %s", c.up.cmd.ProcessState, c.errors))
	}
	// An API server ends gently only while it has its etcd, whoever has started the two.
	c.apiServer.release()
	if !c.up.stop(upGrace) {
		errs = append(errs, fmt.Errorf("the control plane did not end within %s and was killed: %s", upGrace, c.errors))
	}
	c.etcd.release()
	if c.isTemp {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
