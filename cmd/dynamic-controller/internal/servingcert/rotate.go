package servingcert

import (
	"crypto/x509"
	"slices"
	"time"
)

// settled is the age after which all replicas and API servers are assumed to use a new certificate or authority.
const settled = time.Hour

// rotation is the result of rotate.
type rotation struct {
	bundle
	// reasons describes the changes. It is empty if the bundle is unchanged.
	reasons []string
}

func (r *rotation) add(reason string) { r.reasons = append(r.reasons, reason) }

// rotate returns the bundle that replaces b. Parts of b can be missing. trusted contains the authorities that API
// servers trust.
func rotate(b bundle, now time.Time, name string, trusted []*x509.Certificate) (rotation, error) {
	r := rotation{bundle: b}
	unusable := b.check(now, name)
	if err := r.rotateCA(now); err != nil {
		return r, err
	}
	switch {
	case unusable != nil:
		r.add("the certificate cannot be used: " + unusable.Error())
	case now.Before(renewal(b.serving.Certificate)):
		r.dropOlder(now)
		return r, nil
	case now.Sub(created(r.ca.Certificate)) < settled || !slices.ContainsFunc(trusted, r.ca.Equal):
		return r, nil // renew later; the authority may not be trusted everywhere yet
	default:
		r.add("the certificate must be renewed")
	}
	var err error
	r.serving, err = newServing(now, r.ca, name)
	return r, err
}

// rotateCA adds an authority if the newest one cannot be used or must be renewed.
func (r *rotation) rotateCA(now time.Time) (err error) {
	switch unusable := r.checkCA(now); {
	case unusable != nil:
		r.older = nil
	case now.Before(renewal(r.ca.Certificate)):
		return nil
	default:
		r.add("the certificate authority must be renewed")
		r.older = r.authorities()
	}
	r.ca, err = newCA(now)
	return err
}

// dropOlder removes the older authorities once all replicas have loaded a certificate from the newest one.
func (r *rotation) dropOlder(now time.Time) {
	issuedByNewest := r.serving.CheckSignatureFrom(r.ca.Certificate) == nil
	if len(r.older) > 0 && issuedByNewest && now.Sub(created(r.serving.Certificate)) >= settled {
		r.add("no replica uses a certificate from an older authority")
		r.older = nil
	}
}
