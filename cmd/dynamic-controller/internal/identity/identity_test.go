package identity

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

var (
	web        = Identity{"shop", "web"}
	websites   = Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "shop"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	errDown    = apierrors.NewServiceUnavailable("down")
)

func TestIdentity_Username(t *testing.T) {
	if got := web.Username(); got != "system:serviceaccount:shop:web" {
		t.Errorf("got user %s", got)
	}
	platform := Identity{}
	if !platform.IsPlatform() || web.IsPlatform() {
		t.Error("the zero value is not the platform's own identity")
	}
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		options         Options
		request         Request
		want            Identity
		reason, message string
	}{
		"ServiceAccount with consent": {request: websites, want: web},
		"default ServiceAccount with consent": {
			options: Options{DefaultServiceAccount: "web"}, request: Request{Blueprint: "shops", Namespace: "shop"}, want: web,
		},
		"the default takes precedence over the platform's own identity": {
			options: Options{DefaultServiceAccount: "web", AllowPlatformIdentity: true},
			request: Request{Blueprint: "shops", Namespace: "shop"}, want: web,
		},
		"spec.serviceAccountName takes precedence over the default": {
			options: Options{DefaultServiceAccount: "other"}, request: websites, want: web,
		},
		"a cluster-scoped type uses a ServiceAccount in the platform's namespace": {
			request: Request{Blueprint: "teams", ServiceAccountName: "teams"}, want: Identity{platformNamespace, "teams"},
		},
		"the platform's own identity is allowed": {
			options: Options{AllowPlatformIdentity: true}, request: Request{Blueprint: "websites", Namespace: "shop"},
		},
		"no ServiceAccount": {
			request: Request{Blueprint: "websites", Namespace: "shop"}, reason: ReasonIdentityRequired,
			message: "spec.serviceAccountName: required; set it, or ask the operator to set --default-service-account",
		},
		"no consent": {
			request: Request{Blueprint: "other", ServiceAccountName: "web", Namespace: "shop"}, reason: ReasonConsentMissing,
			message: "ServiceAccount shop/web does not allow Blueprint other; " +
				"run kubectl annotate serviceaccount -n shop web " +
				"platform.example.com/allowed-blueprints=other, or add the Blueprint to the existing annotation",
		},
		"consent to a Blueprint with a longer name": {
			request: Request{Blueprint: "shop", ServiceAccountName: "web", Namespace: "shop"}, reason: ReasonConsentMissing,
			message: "does not allow Blueprint shop;",
		},
		"no annotation": {
			request: Request{Blueprint: "websites", ServiceAccountName: "silent", Namespace: "shop"},
			reason:  ReasonConsentMissing, message: "does not allow Blueprint websites",
		},
		"a ServiceAccount of the same name in another namespace": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "other"},
			reason:  ReasonServiceAccountNotFound,
			message: "ServiceAccount other/web: not found; create it with the annotation " +
				"platform.example.com/allowed-blueprints=websites",
		},
		"the platform's own ServiceAccount": {
			request: Request{Blueprint: "teams", ServiceAccountName: "controller"},
			reason:  ReasonServiceAccountNotAllowed, message: "the platform's own ServiceAccount is not allowed",
		},
		"an instance in the platform's namespace": {
			request: Request{Blueprint: "teams", ServiceAccountName: "teams", Namespace: platformNamespace},
			reason:  ReasonServiceAccountNotAllowed, message: "allowed only for cluster-scoped types",
		},
		"an instance in a kube-* namespace": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "kube-public"},
			reason:  ReasonServiceAccountNotAllowed, message: "ServiceAccounts in kube-* namespaces are not allowed",
		},
		"a name with a colon": {
			request: Request{Blueprint: "websites", ServiceAccountName: "web:x", Namespace: "shop"},
			reason:  ReasonServiceAccountNotAllowed,
			message: `spec.serviceAccountName: "web:x" is not a valid ServiceAccount name`,
		},
		"a name with a path": {
			request: Request{Blueprint: "websites", ServiceAccountName: "../secrets/web", Namespace: "shop"},
			reason:  ReasonServiceAccountNotAllowed, message: "is not a valid ServiceAccount name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, _ := newFake(t, test.options)
			s.accounts["shop/silent"] = nil
			for _, account := range []string{"platform-system/teams", "platform-system/controller", "kube-public/web"} {
				s.accounts[account] = map[string]string{AllowedBlueprints: "teams,websites"}
			}
			got, err := m.Resolve(t.Context(), test.request)
			if test.reason == "" {
				if err != nil || got != test.want {
					t.Errorf("got %s, %v; want %s", got, err, test.want)
				}
				return
			}
			wantRejection(t, err, test.reason, test.message)
			if !got.IsPlatform() {
				t.Errorf("got %s together with an error", got)
			}
		})
	}
}

func wantRejection(t *testing.T, err error, reason, message string) {
	t.Helper()
	var rejection *Rejection
	if !errors.As(err, &rejection) || rejection.Reason != reason || !strings.Contains(rejection.Message, message) {
		t.Errorf("got error %v (%T), want reason %s and message %q", err, err, reason, message)
	}
}

// The author cannot choose the namespace of the ServiceAccount in this case.
func TestResolve_ClusterScopedTypeOfAPlatformInAProtectedNamespace(t *testing.T) {
	m, _, _ := newFake(t, Options{})
	m.options.Namespace = "kube-system"
	_, err := m.Resolve(t.Context(), Request{Blueprint: "teams", ServiceAccountName: "teams"})
	wantRejection(t, err, ReasonServiceAccountNotAllowed, "ServiceAccount kube-system/teams: cluster-scoped types are "+
		"not supported while the platform runs in a kube-* namespace; "+
		"ask the operator to run the platform in another namespace")
}

func TestResolve_RetriesWhileThePlatformUserIsUnknown(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.change(func() { s.err = errDown })
	var rejection *Rejection
	if id, err := m.Resolve(t.Context(), websites); err == nil || errors.As(err, &rejection) {
		t.Errorf("got %s, %v; want a temporary error", id, err)
	}
	s.change(func() { s.err, s.user = nil, "" })
	if id, err := m.Resolve(t.Context(), websites); err == nil {
		t.Errorf("got %s from a review without a user", id)
	}
	s.change(func() { s.user = platformUser })
	if id, err := m.Resolve(t.Context(), websites); err != nil || id != web {
		t.Errorf("got %s, %v; want %s", id, err, web)
	}
}

func TestResolve_PlatformThatIsNotAServiceAccount(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.user = "admin"
	if id, err := m.Resolve(t.Context(), websites); err != nil || id != web {
		t.Errorf("got %s, %v; want %s", id, err, web)
	}
}

func TestResolve_ServiceAccountThatCannotBeRead(t *testing.T) {
	m, s, _ := newFake(t, Options{AllowPlatformIdentity: true})
	if _, err := m.own.get(t.Context(), "", m.review); err != nil {
		t.Fatal(err)
	}
	s.err = apierrors.NewForbidden(serviceAccounts.GroupResource(), "web", errors.New("no role"))
	_, err := m.Resolve(t.Context(), websites)
	wantRejection(t, err, ReasonPermissionMissing, "ServiceAccount shop/web: the platform is not permitted to read this "+
		"ServiceAccount; make sure that it exists, and bind the platform's ServiceAccount to a Role in "+
		"namespace shop with verbs [get, impersonate], "+
		"resources [serviceaccounts], resourceNames [web]")
}

func TestResolve_CachesConsentForOneMinute(t *testing.T) {
	m, s, clock := newFake(t, Options{})
	resolve := func() error {
		_, err := m.Resolve(t.Context(), websites)
		return err
	}
	if err := resolve(); err != nil {
		t.Fatal(err)
	}
	s.change(func() { s.accounts["shop/web"] = nil })
	before := s.count()
	clock.SetTime(clock.Now().Add(time.Minute - time.Nanosecond))
	if err := resolve(); err != nil || s.count() != before {
		t.Errorf("got %v and %d requests within a minute", err, s.count()-before)
	}
	clock.SetTime(clock.Now().Add(time.Nanosecond))
	wantRejection(t, resolve(), ReasonConsentMissing, "does not allow")

	// New consent takes effect within seconds.
	s.change(func() { s.accounts["shop/web"] = map[string]string{AllowedBlueprints: "websites"} })
	before = s.count()
	wantRejection(t, resolve(), ReasonConsentMissing, "does not allow")
	if s.count() != before {
		t.Error("the missing consent is not cached")
	}
	clock.SetTime(clock.Now().Add(3 * time.Second))
	if err := resolve(); err != nil {
		t.Error(err)
	}
}

func TestResolve_ConsentIsNotSharedBetweenBlueprints(t *testing.T) {
	m, s, _ := newFake(t, Options{})
	s.accounts["shop/web"] = map[string]string{AllowedBlueprints: "websites"}
	if _, err := m.Resolve(t.Context(), websites); err != nil {
		t.Fatal(err)
	}
	other := websites
	other.Blueprint = "shops"
	_, err := m.Resolve(t.Context(), other)
	wantRejection(t, err, ReasonConsentMissing, "does not allow Blueprint shops")
}

func TestIsImpersonationForbidden(t *testing.T) {
	const user = `User "system:serviceaccount:platform-system:controller" cannot `
	forbidden := func(resource, name, message string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New(message))
	}
	fields := forbidden("userextras", "ns/l", user+`impersonate resource "userextras/`+serverfence.LeaseExtra+`"`)
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"impersonate": {
			forbidden("serviceaccounts", "web", user+`impersonate resource "serviceaccounts" in API group ""`),
			true,
		},
		"wrapped": {
			fmt.Errorf("apply: %w", forbidden("serviceaccounts", "web", user+`impersonate resource "serviceaccounts"`)), true,
		},
		"constrained": {
			forbidden("serviceaccounts", "web", user+`impersonate:serviceaccount resource "x"`), true,
		},
		"constrained to a request": {
			forbidden("configmaps", "", user+`impersonate-on:serviceaccount:get resource "x"`), true,
		},
		"the fields of the fence": {fields, false},
		"denied to the identity": {
			forbidden("configmaps", "page", `User "system:serviceaccount:shop:web" cannot get resource "configmaps"`), false,
		},
		"a message from an admission webhook": {
			forbidden("configmaps", "page", `admission webhook "x" denied the request: `+user+`impersonate resource "y"`), false,
		},
		"a message within a message": {
			forbidden("configmaps", "page", `denied: x is forbidden: `+user+`impersonate resource "y"`), false,
		},
		"a name that contains a message": {
			forbidden("configmaps", `x" is forbidden: `+user+`impersonate resource`, `User "web" cannot get resource "x"`),
			false,
		},
		"another code": {apierrors.NewBadRequest(`x is forbidden: ` + user + `impersonate resource "y"`), false},
		"no status":    {errors.New(`x is forbidden: ` + user + `impersonate resource "y"`), false},
		"nil":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsImpersonationForbidden(test.err); got != test.want {
				t.Errorf("got %t for %v", got, test.err)
			}
		})
	}
	if !IsFenceForbidden(fields) ||
		IsFenceForbidden(forbidden("serviceaccounts", "web", user+`impersonate resource "serviceaccounts"`)) {
		t.Error("the fields of the fence are confused with the identity")
	}
	if !IsPermissionMissing(forbidden("configmaps", "a", `User "web" cannot delete resource "configmaps"`)) ||
		IsPermissionMissing(forbidden("configmaps", "a", `the policy says: User "web" cannot delete resource "x"`)) {
		t.Error("the message from a policy is confused with a missing permission")
	}
	wantRejection(t, ImpersonationRejection(web), ReasonPermissionMissing,
		"ServiceAccount shop/web: the platform is not permitted to impersonate this ServiceAccount; "+
			"bind the platform's ServiceAccount to a Role in namespace shop")
}
