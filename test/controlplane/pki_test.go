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

func TestPKI(t *testing.T) {
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
		{"the API server is trusted in a Pod", apiServerCert, clusterCA, x509.ExtKeyUsageServerAuth, "kubernetes.default.svc"},
		{"etcd is trusted on loopback", etcdCert, etcdCA, x509.ExtKeyUsageServerAuth, "127.0.0.1"},
		{"the administrator is a client of the API server", adminCert, clusterCA, x509.ExtKeyUsageClientAuth, ""},
		{"the API server is a client of etcd", etcdClientCert, etcdCA, x509.ExtKeyUsageClientAuth, ""},
		{"the API server is a front proxy", frontProxyCert, frontProxyCA, x509.ExtKeyUsageClientAuth, ""},
	} {
		t.Run(c.name+", and to nobody else", func(t *testing.T) {
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
					t.Errorf("by %s: %v", authority, err)
				}
			}
		})
	}

	t.Run("the administrator is a master", func(t *testing.T) {
		if groups := loadCert(t, d, adminCert).Subject.Organization; !slices.Contains(groups, "system:masters") {
			t.Errorf("groups %q", groups)
		}
	})
	t.Run("only the owner reads it", func(t *testing.T) {
		err := filepath.WalkDir(d.path("pki"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("it is made once", func(t *testing.T) {
		before := loadCert(t, d, adminCert)
		if err := d.ensurePKI(); err != nil {
			t.Fatal(err)
		}
		if !loadCert(t, d, adminCert).Equal(before) {
			t.Error("made again")
		}
	})
	t.Run("a part of it is not taken for it", func(t *testing.T) {
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

func TestKubeconfig(t *testing.T) {
	d := dir(t.TempDir())
	if err := d.ensurePKI(); err != nil {
		t.Fatal(err)
	}
	t.Run("both files say the same", func(t *testing.T) {
		also := filepath.Join(t.TempDir(), "config")
		if err := d.writeKubeconfig("https://127.0.0.1:1", also); err != nil {
			t.Fatal(err)
		}
		one, err := os.ReadFile(d.kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(also)
		if err != nil || string(one) != string(two) {
			t.Errorf("they differ (%v)", err)
		}
		if config, err := d.adminConfig(); err != nil || config.Host != "https://127.0.0.1:1" || len(config.KeyData) == 0 {
			t.Errorf("host %s, error %v", config.Host, err)
		}
	})
	t.Run("a file that cannot be written is named", func(t *testing.T) {
		also := d.path("nowhere", "config")
		if err := d.writeKubeconfig("https://127.0.0.1:1", also); err == nil || !strings.Contains(err.Error(), also) {
			t.Errorf("got %v", err)
		}
	})
}
