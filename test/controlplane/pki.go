package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Clients of etcd, clients of the API server, and the API server in its role as a front proxy have different
// permissions. Therefore, each of these groups has a separate certificate authority.
const (
	clusterCA    = "ca"
	etcdCA       = "etcd-ca"
	frontProxyCA = "front-proxy-ca"

	apiServerCert  = "apiserver"
	adminCert      = "admin"
	etcdCert       = "etcd"
	etcdClientCert = "apiserver-etcd-client"
	frontProxyCert = "front-proxy-client"

	serviceAccountKey = "sa"
)

const validity = 10 * 365 * 24 * time.Hour

func (d dir) cert(name string) string { return d.path("pki", name+".crt") }
func (d dir) key(name string) string  { return d.path("pki", name+".key") }

// ensurePKI creates all keys and certificates of the cluster unless they exist. If it fails, none of them are created.
func (d dir) ensurePKI() error {
	if _, err := os.Stat(d.path("pki")); err == nil {
		return nil
	}
	tmp, err := os.MkdirTemp(string(d), "pki.new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // The directory no longer exists after it has been renamed.
	if err := writePKI(tmp); err != nil {
		return fmt.Errorf("create keys and certificates: %w", err)
	}
	return os.Rename(tmp, d.path("pki"))
}

func writePKI(into string) error {
	loopbackIP := net.IPv4(127, 0, 0, 1)
	server := func(name string, ips []net.IP, dnsNames ...string) *x509.Certificate {
		return &x509.Certificate{
			Subject:     pkix.Name{CommonName: name},
			DNSNames:    dnsNames,
			IPAddresses: ips,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
	}
	client := func(name string, groups ...string) *x509.Certificate {
		return &x509.Certificate{
			Subject:     pkix.Name{CommonName: name, Organization: groups},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
	}
	for _, a := range []struct {
		name   string
		issues map[string]*x509.Certificate
	}{
		{clusterCA, map[string]*x509.Certificate{
			apiServerCert: server("kube-apiserver", []net.IP{loopbackIP, apiServerServiceIP}, "localhost", "kubernetes",
				"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
			adminCert: client("admin", "system:masters"),
		}},
		{etcdCA, map[string]*x509.Certificate{
			etcdCert:       server("etcd", []net.IP{loopbackIP}, "localhost"),
			etcdClientCert: client("kube-apiserver"),
		}},
		{frontProxyCA, map[string]*x509.Certificate{
			frontProxyCert: client(frontProxyCert),
		}},
	} {
		ca, err := newAuthority(a.name)
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(into, a.name+".crt"), "CERTIFICATE", ca.cert.Raw); err != nil {
			return err
		}
		for name, template := range a.issues {
			if err := ca.issue(into, name, template); err != nil {
				return err
			}
		}
	}
	return writeServiceAccountKeys(into)
}

// authority signs certificates. Its key is not stored, so no further certificates can be issued later.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	raw, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &authority{cert: cert, key: key}, err
}

func (a *authority) issue(into, name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	raw, err := sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(into, name+".crt"), "CERTIFICATE", raw); err != nil {
		return err
	}
	return writePrivateKey(filepath.Join(into, name+".key"), key)
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour) // Tolerate clocks that are set back.
	template.NotAfter = time.Now().Add(validity)
	return x509.CreateCertificate(rand.Reader, template, parent, public, signer)
}

// writeServiceAccountKeys creates the key pair that the API server uses to sign and verify service account tokens.
func writeServiceAccountKeys(into string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(into, serviceAccountKey+".pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return writePrivateKey(filepath.Join(into, serviceAccountKey+".key"), key)
}

func writePrivateKey(path string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", raw)
}

func writePEM(path, kind string, raw []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600)
}
