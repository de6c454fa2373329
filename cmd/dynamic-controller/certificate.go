package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/cert"
)

const (
	// certificateCheckInterval is the minimum time between checks of a certificate's files.
	certificateCheckInterval = 10 * time.Second
	// selfSignedInterval is much shorter than the validity of a self-signed certificate, which is a year.
	selfSignedInterval = 30 * 24 * time.Hour
)

// servingCertificate is the certificate of an endpoint. GetCertificate reloads it if the last load is older than
// interval. It is safe for concurrent use.
type servingCertificate struct {
	log      logr.Logger
	interval time.Duration
	load     func() (*tls.Certificate, error)

	current atomic.Pointer[tls.Certificate]

	mu      sync.Mutex // guards the fields below; held while the certificate is loaded
	loaded  time.Time
	problem string // the last logged problem
}

// newServingCertificate returns the certificate from the files, or a self-signed one if there are no files.
func newServingCertificate(log logr.Logger, certFile, keyFile string) (*servingCertificate, error) {
	c := &servingCertificate{log: log, interval: certificateCheckInterval, loaded: time.Now()}
	c.load = func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &pair, err
	}
	if certFile == "" {
		c.interval, c.load = selfSignedInterval, newSelfSigned
	}
	current, err := c.load()
	c.current.Store(current)
	return c, err
}

// GetCertificate returns the last usable certificate, for [tls.Config]. While one caller reloads the certificate, the
// other callers do not wait for it.
func (c *servingCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		if time.Since(c.loaded) >= c.interval {
			c.reloadLocked()
		}
	}
	return c.current.Load(), nil
}

func (c *servingCertificate) reloadLocked() {
	c.loaded = time.Now()
	next, err := c.load()
	switch {
	case err == nil && slices.EqualFunc(next.Certificate, c.current.Load().Certificate, bytes.Equal):
		c.problem = ""
	case err == nil:
		c.current.Store(next)
		c.problem = ""
		c.log.Info("Certificate loaded", "expires", next.Leaf.NotAfter)
	case err.Error() != c.problem:
		c.problem = err.Error()
		c.log.Info("Certificate not loaded, will retry", "problem", c.problem)
	}
}

func newSelfSigned() (*tls.Certificate, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("create a self-signed certificate: %w", err)
	}
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{
		Host: host, AlternateDNS: []string{"localhost"},
	})
	if err != nil {
		return nil, fmt.Errorf("create a self-signed certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	return &pair, err
}
