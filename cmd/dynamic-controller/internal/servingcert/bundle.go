package servingcert

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Keys of the Secret.
const (
	caKey      = "ca.crt"
	caKeyKey   = "ca.key"
	servingKey = "tls.crt"
	serverKey  = "tls.key"
)

// IsOwn reports whether the keys of a Secret are those that a Manager writes. Secrets that other programs write do not
// contain the private key of an authority.
func IsOwn(keys []string) bool {
	isOther := func(key string) bool { return !slices.Contains([]string{caKey, caKeyKey, servingKey, serverKey}, key) }
	return slices.Contains(keys, caKeyKey) && !slices.ContainsFunc(keys, isOther)
}

// bundle contains the decoded contents of the Secret. It is immutable.
type bundle struct {
	ca      issued              // the newest authority
	older   []*x509.Certificate // older authorities
	serving issued
}

// authorities returns all authorities, newest first.
func (b bundle) authorities() []*x509.Certificate {
	return append([]*x509.Certificate{b.ca.Certificate}, b.older...)
}

// caBundle returns the authorities in PEM format.
func (b bundle) caBundle() ([]byte, error) { return cert.EncodeCertificates(b.authorities()...) }

// tlsCertificate returns the serving certificate.
func (b bundle) tlsCertificate() *tls.Certificate {
	return &tls.Certificate{
		Certificate: [][]byte{b.serving.Raw}, PrivateKey: b.serving.key, Leaf: b.serving.Certificate,
	}
}

// parse decodes the contents of the Secret. It accepts expired certificates.
func parse(data map[string][]byte) (bundle, error) {
	authorities, newest, err := parseIssued(data, caKey, caKeyKey)
	if err != nil {
		return bundle{}, err
	}
	b := bundle{ca: newest, older: authorities[1:]}
	_, b.serving, err = parseIssued(data, servingKey, serverKey)
	return b, err
}

// parseIssued decodes the certificates and the key in the given entries of the Secret. It returns all certificates, and
// the first one together with the key.
func parseIssued(data map[string][]byte, certificates, key string) ([]*x509.Certificate, issued, error) {
	fail := func(name string, err error) ([]*x509.Certificate, issued, error) {
		return nil, issued{}, fmt.Errorf("%s: %w", name, err)
	}
	all, err := cert.ParseCertsPEM(data[certificates])
	if err != nil {
		return fail(certificates, err)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(data[key])
	if err != nil {
		return fail(key, err)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return fail(key, errors.New("not a signing key"))
	}
	if public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(all[0].PublicKey) {
		return fail(key, fmt.Errorf("not the key of %s", certificates))
	}
	return all, issued{all[0], signer}, nil
}

// encode returns the contents of the Secret.
func (b bundle) encode() (map[string][]byte, error) {
	authorities, err1 := b.caBundle()
	serving, err2 := cert.EncodeCertificates(b.serving.Certificate)
	caPrivate, err3 := keyutil.MarshalPrivateKeyToPEM(b.ca.key)
	servingPrivate, err4 := keyutil.MarshalPrivateKeyToPEM(b.serving.key)
	return map[string][]byte{
		caKey: authorities, caKeyKey: caPrivate, servingKey: serving, serverKey: servingPrivate,
	}, errors.Join(err1, err2, err3, err4)
}

// checkCA returns an error if the newest authority cannot issue certificates at the given time.
func (b bundle) checkCA(now time.Time) error {
	ca := b.ca.Certificate
	switch {
	case ca == nil:
		return errors.New("no certificate authority")
	case !ca.IsCA || ca.CheckSignatureFrom(ca) != nil:
		return errors.New("ca.crt does not begin with a self-signed certificate authority")
	case now.Before(ca.NotBefore) || !now.Before(ca.NotAfter):
		return fmt.Errorf("the certificate authority is valid only from %s to %s", ca.NotBefore, ca.NotAfter)
	}
	return nil
}

// check returns an error if API servers that trust the authorities would reject the certificate at the given time.
func (b bundle) check(now time.Time, name string) error {
	if err := b.checkCA(now); err != nil {
		return err
	}
	if b.serving.Certificate == nil {
		return errors.New("no certificate")
	}
	roots := x509.NewCertPool()
	for _, ca := range b.authorities() {
		roots.AddCert(ca)
	}
	_, err := b.serving.Verify(x509.VerifyOptions{
		DNSName: name, Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
