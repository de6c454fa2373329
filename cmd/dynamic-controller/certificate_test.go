package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/cert"
)

// writeCertificate writes a new certificate for localhost to two files.
func writeCertificate(t *testing.T, certFile, keyFile string) *x509.Certificate {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{certFile: certificate, keyFile: key} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestServingCertificate_IsReadAgainWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if _, err := newServingCertificate(logr.Discard(), certFile, keyFile); err == nil {
		t.Error("got no error for missing files")
	}
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		first := writeCertificate(t, certFile, keyFile)
		c, err := newServingCertificate(log, certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		want := func(want *x509.Certificate, lines ...string) {
			t.Helper()
			got, err := c.GetCertificate(nil)
			if err != nil || !got.Leaf.Equal(want) {
				t.Errorf("got %+v (error %v), want another certificate", got, err)
			}
			if len(logged) != len(lines) {
				t.Fatalf("logged %q, want %q", logged, lines)
			}
			for i, line := range lines {
				if !strings.Contains(logged[i], line) {
					t.Errorf("logged %q, want %q", logged, lines)
				}
			}
			logged = nil
		}
		want(first)
		second := writeCertificate(t, certFile, keyFile)
		want(first) // the files are not read again yet
		time.Sleep(certificateCheckInterval)
		want(second, "Certificate loaded")
		if err := os.WriteFile(keyFile, []byte("incomplete"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateCheckInterval)
		want(second, "Certificate not loaded, will retry")
		time.Sleep(certificateCheckInterval)
		want(second) // the same problem is not logged again
		third := writeCertificate(t, certFile, keyFile)
		time.Sleep(certificateCheckInterval)
		want(third, "Certificate loaded")
	})
}

func TestServingCertificate_IsReplacedWhenOnlyTheChainChanges(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	intermediateFile := filepath.Join(dir, "intermediate.crt")
	synctest.Test(t, func(t *testing.T) {
		intermediate := writeCertificate(t, intermediateFile, keyFile)
		leaf := writeCertificate(t, certFile, keyFile)
		c, err := newServingCertificate(logr.Discard(), certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		var chain []byte
		for _, raw := range [][]byte{leaf.Raw, intermediate.Raw} {
			chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})...)
		}
		if err := os.WriteFile(certFile, chain, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateCheckInterval)
		got, err := c.GetCertificate(nil)
		if err != nil || !slices.EqualFunc(got.Certificate, [][]byte{leaf.Raw, intermediate.Raw}, bytes.Equal) {
			t.Errorf("got %d certificates (error %v), want the leaf and the intermediate", len(got.Certificate), err)
		}
	})
}

func TestServingCertificate_IsServedWhileTheFilesCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newServingCertificate(logr.Discard(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		current := c.current.Load()
		hung := make(chan struct{})
		c.load = func() (*tls.Certificate, error) {
			<-hung
			return nil, errors.New("the volume is gone")
		}
		time.Sleep(selfSignedInterval)
		go func() { _, _ = c.GetCertificate(nil) }()
		synctest.Wait()
		// This call hangs if it waits for the first caller.
		if got, err := c.GetCertificate(nil); err != nil || got != current {
			t.Errorf("got %v (error %v), want the current certificate", got, err)
		}
		close(hung)
	})
}

func TestServingCertificate_SelfSignedIsReplacedBeforeItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newServingCertificate(logr.Discard(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		for range 15 { // more than a year
			got, err := c.GetCertificate(nil)
			if err != nil || time.Now().After(got.Leaf.NotAfter) || got.Leaf.VerifyHostname("localhost") != nil {
				t.Fatalf("got %+v (error %v) at %s", got.Leaf, err, time.Now())
			}
			time.Sleep(selfSignedInterval)
		}
	})
}
