package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"time"
)

const (
	caLifetime      = 365 * 24 * time.Hour
	servingLifetime = 90 * 24 * time.Hour
	// skew is subtracted from the start of a certificate's validity to allow for clock differences.
	skew = time.Hour
)

// issued is a certificate with its key.
type issued struct {
	*x509.Certificate
	key crypto.Signer
}

// newCA returns a self-signed authority. Unlike client-go's NewSelfSignedCACert, it uses the given time as the current
// time.
func newCA(now time.Time) (issued, error) {
	return issue(&x509.Certificate{
		// A bundle can contain two authorities. Different names distinguish them in tools.
		Subject:   pkix.Name{CommonName: fmt.Sprintf("dynamic-controller-webhook-ca@%d", now.Unix())},
		NotBefore: now.Add(-skew), NotAfter: now.Add(caLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil)
}

// newServing returns a serving certificate for the given DNS name. It expires no later than the authority.
func newServing(now time.Time, ca issued, name string) (issued, error) {
	expires := now.Add(servingLifetime)
	if ca.NotAfter.Before(expires) {
		expires = ca.NotAfter
	}
	return issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "dynamic-controller-webhook"}, DNSNames: []string{name},
		NotBefore: now.Add(-skew), NotAfter: expires, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &ca)
}

// issue signs a certificate with the key of ca. If ca is nil, the certificate is self-signed.
func issue(template *x509.Certificate, ca *issued) (issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued{}, fmt.Errorf("generate a key: %w", err)
	}
	if ca == nil {
		ca = &issued{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Certificate, key.Public(), ca.key)
	if err != nil {
		return issued{}, fmt.Errorf("sign a certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	return issued{certificate, key}, err
}

// created returns the time at which a certificate was created.
func created(c *x509.Certificate) time.Time { return c.NotBefore.Add(skew) }

// renewal returns the time at which a certificate must be replaced.
func renewal(c *x509.Certificate) time.Time {
	return created(c).Add(c.NotAfter.Sub(created(c)) * 2 / 3)
}
