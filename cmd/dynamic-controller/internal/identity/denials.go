package identity

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
)

// Denials caches denied impersonations for three seconds, so that requests that would be denied again are not sent. It
// is safe for concurrent use.
type Denials struct{ cache *utilcache.LRUExpireCache }

// NewDenials returns empty Denials.
func NewDenials(clock utilcache.Clock) *Denials {
	return &Denials{cache: utilcache.NewLRUExpireCacheWithClock(maxAnswers, clock)}
}

// Attempt describes a request that is sent as an identity.
type Attempt struct {
	Identity  Identity
	Verb      string
	Resource  schema.GroupVersionResource
	Namespace string
}

// Do calls send and returns its error. If the impersonation is denied, the error is a *Rejection. If the same attempt
// was denied recently, Do returns a *Rejection without calling send. With constrained impersonation, the API server can
// deny the impersonation for some requests and permit it for others. If the platform lacks the permission for its fence
// on the server, the error contains FenceAdvice, because the identity is not the cause.
func (d *Denials) Do(a Attempt, send func() error) error {
	if a.Identity.IsPlatform() {
		return send()
	}
	every := Attempt{Identity: a.Identity}
	for _, denied := range []Attempt{every, a} {
		if _, found := d.cache.Get(denied); found {
			return ImpersonationRejection(a.Identity)
		}
	}
	err := send()
	if IsFenceForbidden(err) {
		return fmt.Errorf("%w; %s", err, FenceAdvice)
	}
	if !IsImpersonationForbidden(err) {
		return err
	}
	if !strings.Contains(err.Error(), " cannot impersonate-on:") {
		a = every
	}
	d.cache.Add(a, nil, keepNegative)
	return ImpersonationRejection(a.Identity)
}
