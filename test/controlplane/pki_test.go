package main

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func loadCert(t *testing.T, d dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(d.cert(name), d.key(name))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestEnsurePKI_IssuesTrustedCertificates(t *testing.T) {
	d := dir(t.TempDir())
	if err := d.ensurePKI(); err != nil {
		t.Fatal(err)
	}

	authorities := []string{clusterCA, etcdCA, frontProxyCA}
	for _, c := range []struct {
		name      string
		cert      string
		authority string
		use       x509.ExtKeyUsage
		host      string
	}{
		{"the API server is trusted on loopback", apiServerCert, clusterCA, x509.ExtKeyUsageServerAuth, "127.0.0.1"},
		{
			"the API server is trusted in a Pod", apiServerCert, clusterCA, x509.ExtKeyUsageServerAuth,
			"kubernetes.default.svc",
		},
		{"etcd is trusted on loopback", etcdCert, etcdCA, x509.ExtKeyUsageServerAuth, "127.0.0.1"},
		{"the administrator is a client of the API server", adminCert, clusterCA, x509.ExtKeyUsageClientAuth, ""},
		{"the API server is a client of etcd", etcdClientCert, etcdCA, x509.ExtKeyUsageClientAuth, ""},
		{"the API server is a front proxy", frontProxyCert, frontProxyCA, x509.ExtKeyUsageClientAuth, ""},
	} {
		t.Run(c.name+" by one authority only", func(t *testing.T) {
			for _, authority := range authorities {
				pool := x509.NewCertPool()
				pem, err := os.ReadFile(d.cert(authority))
				if err != nil || !pool.AppendCertsFromPEM(pem) {
					t.Fatalf("%s: %v", authority, err)
				}
				_, err = loadCert(t, d, c.cert).Verify(x509.VerifyOptions{
					Roots: pool, DNSName: c.host, KeyUsages: []x509.ExtKeyUsage{c.use},
				})
				if trusted := err == nil; trusted != (authority == c.authority) {
					t.Errorf("verify with %s: %v", authority, err)
				}
			}
		})
	}

	t.Run("the administrator belongs to system:masters", func(t *testing.T) {
		if groups := loadCert(t, d, adminCert).Subject.Organization; !slices.Contains(groups, "system:masters") {
			t.Errorf("got groups %q", groups)
		}
	})
	t.Run("only the owner can read the files", func(t *testing.T) {
		err := filepath.WalkDir(d.path("pki"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("existing certificates are not replaced", func(t *testing.T) {
		before := loadCert(t, d, adminCert)
		if err := d.ensurePKI(); err != nil {
			t.Fatal(err)
		}
		if !loadCert(t, d, adminCert).Equal(before) {
			t.Error("the administrator's certificate was replaced")
		}
	})
	t.Run("an incomplete directory is ignored", func(t *testing.T) {
		d := dir(t.TempDir())
		if err := os.Mkdir(d.path("pki.new-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := d.ensurePKI(); err != nil {
			t.Fatal(err)
		}
		loadCert(t, d, adminCert)
	})
}

func TestWriteKubeconfig_WritesBothFiles(t *testing.T) {
	d := dir(t.TempDir())
	if err := d.ensurePKI(); err != nil {
		t.Fatal(err)
	}
	t.Run("both files have the same content", func(t *testing.T) {
		extraPath := filepath.Join(t.TempDir(), "config")
		if err := d.writeKubeconfig("https://127.0.0.1:1", extraPath); err != nil {
			t.Fatal(err)
		}
		one, err := os.ReadFile(d.kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(extraPath)
		if err != nil || string(one) != string(two) {
			t.Errorf("the files differ, error %v", err)
		}
		if config, err := d.adminConfig(); err != nil || config.Host != "https://127.0.0.1:1" || len(config.KeyData) == 0 {
			t.Errorf("got config %v, error %v", config, err)
		}
	})
	t.Run("an error contains the path of the file", func(t *testing.T) {
		extraPath := d.path("nowhere", "config")
		err := d.writeKubeconfig("https://127.0.0.1:1", extraPath)
		if err == nil || !strings.Contains(err.Error(), extraPath) {
			t.Errorf("got error %v, want it to contain %s", err, extraPath)
		}
	})
}
