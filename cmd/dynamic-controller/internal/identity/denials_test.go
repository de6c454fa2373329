package identity

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

func TestDenials(t *testing.T) {
	deny := func(verb string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "web",
			errors.New(`User "platform" cannot `+verb+` resource "serviceaccounts" in API group ""`))
	}
	get := Attempt{Identity: web, Verb: "get", Resource: configMaps, Namespace: "shop"}
	remove, otherNamespace, otherIdentity, platform := get, get, get, get
	remove.Verb, otherNamespace.Namespace = "delete", "far"
	otherIdentity.Identity, platform.Identity = Identity{"shop", "other"}, Identity{}
	for name, test := range map[string]struct {
		err        error
		deniedAlso []Attempt
		sent       []Attempt
	}{
		"impersonate": {
			deny("impersonate"), []Attempt{get, remove, otherNamespace}, []Attempt{otherIdentity, platform},
		},
		"constrained": {
			deny("impersonate:serviceaccount"), []Attempt{get, remove, otherNamespace}, []Attempt{otherIdentity, platform},
		},
		"constrained to a request": {
			deny("impersonate-on:serviceaccount:get"), []Attempt{get},
			[]Attempt{remove, otherNamespace, otherIdentity, platform},
		},
		"denied to the identity": {deny("get"), nil, []Attempt{get, remove, otherNamespace, otherIdentity, platform}},
	} {
		t.Run(name, func(t *testing.T) {
			fakeClock := clocktesting.NewFakePassiveClock(time.Now())
			d := NewDenials(fakeClock)
			err := d.Do(get, func() error { return test.err })
			if test.deniedAlso == nil && !errors.Is(err, test.err) {
				t.Errorf("got %v", err)
			}
			if test.deniedAlso != nil {
				wantRejection(t, err, ReasonPermissionMissing, "ServiceAccount shop/web: ")
			}
			for _, a := range test.deniedAlso {
				checkSent(t, d, a, false)
			}
			for _, a := range test.sent {
				checkSent(t, d, a, true)
			}
			fakeClock.SetTime(fakeClock.Now().Add(keepNegative + time.Second))
			checkSent(t, d, get, true)
		})
	}
}

// The identity is not the cause if the platform is not permitted to set the fields of its fence on the server.
func TestDenials_MissingPermissionForTheFenceIsNotThatOfTheIdentity(t *testing.T) {
	d := NewDenials(clock.RealClock{})
	denied := apierrors.NewForbidden(schema.GroupResource{Group: "authentication.k8s.io", Resource: "userextras"}, "ns/l",
		errors.New(`User "platform" cannot impersonate resource "userextras/`+serverfence.LeaseExtra+`" in API group `+
			`"authentication.k8s.io" at the cluster scope`))
	get := Attempt{Identity: web, Verb: "get", Resource: configMaps, Namespace: "shop"}
	err := d.Do(get, func() error { return denied })
	if rejection := (*Rejection)(nil); errors.As(err, &rejection) {
		t.Errorf("got the rejection %v", rejection)
	}
	if !errors.Is(err, denied) || !strings.HasSuffix(err.Error(), "; "+FenceAdvice) {
		t.Errorf("got %v", err)
	}
	checkSent(t, d, get, true)
}

func checkSent(t *testing.T, d *Denials, a Attempt, want bool) {
	t.Helper()
	sent := false
	err := d.Do(a, func() error { sent = true; return nil })
	if sent != want || want && err != nil {
		t.Errorf("%+v: sent: %t, %v", a, sent, err)
	}
	if !want {
		wantRejection(t, err, ReasonPermissionMissing, "not permitted to impersonate this ServiceAccount")
	}
}

func TestDenials_ConcurrentUse(t *testing.T) {
	d := NewDenials(clock.RealClock{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_ = d.Do(Attempt{Identity: web}, func() error { return nil })
			}
		})
	}
	wg.Wait()
}
