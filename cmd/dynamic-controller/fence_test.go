package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// cannot returns the API server's error for a missing permission of the platform.
func cannot(verb, resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "any",
		errors.New(`User "platform" cannot `+verb+` resource "`+resource+`" in API group ""`))
}

// respondWithUser sends a SelfSubjectReview, or an error of the API server.
func respondWithUser(w http.ResponseWriter, err error, groups ...string) {
	w.Header().Set("Content-Type", "application/json")
	var response any = authenticationv1.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
		Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{
				Username: "platform", Groups: slices.DeleteFunc(groups, func(group string) bool { return group == "" }),
			},
		},
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		failure := status.Status()
		failure.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		response = failure
		w.WriteHeader(int(failure.Code))
	}
	_ = json.NewEncoder(w).Encode(response)
}

func TestSignedUsername_ReportsMissingPermissions(t *testing.T) {
	for name, test := range map[string]struct {
		unsigned, signed error
		lost             string // a group of the user, without impersonation
		want             string // part of the error, or "" if none is expected
	}{
		"permitted":  {},
		"no reviews": {unsigned: cannot("create", "selfsubjectreviews"), want: "find out the name of the platform's user: "},
		"no permission for the fields": {
			signed: cannot("impersonate", "userextras/"+serverfence.HolderExtra),
			want:   "; " + identity.FenceAdvice,
		},
		"no permission to impersonate itself": {
			signed: cannot("impersonate", "serviceaccounts"), want: "the verb impersonate on its own user",
		},
		"permissions of a group": {lost: "system:masters", want: `does not belong to the groups ["system:masters"]`},
		"another failure": {
			signed: apierrors.NewInternalError(errors.New("down")), want: "send a request with the fields of the fence: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch user := r.Header.Get(transport.ImpersonateUserHeader); {
				case user == "":
					respondWithUser(w, test.unsigned, "system:authenticated", test.lost)
				case user != "platform" || len(r.Header["Impersonate-Extra-Fence.dynamic-Controller.github.io%2flease"]) != 1:
					t.Errorf("got the headers %v", r.Header)
				default:
					respondWithUser(w, test.signed, "system:authenticated")
				}
			}))
			defer server.Close()
			cfg := &rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}
			username, err := signedUsername(t.Context(), cfg, serverfence.Options{LeaseNamespace: "ns", LeaseName: "l"})
			switch {
			case test.want == "" && (err != nil || username != "platform"):
				t.Errorf("got %q, %v", username, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

func TestFenceProbe_LogsChanges(t *testing.T) {
	const (
		enforced    = `"level"=0 "msg"="Fence on the server enforced"`
		notEnforced = `"level"=0 "msg"="Fence on the server not enforced, late writes are admitted"`
		outdated    = `"msg"="Fence on the server outdated, restart the API servers"`
		forbidden   = `"msg"="Fence on the server not checked because of a missing permission"`
		notChecked  = `"level"=0 "msg"="Fence on the server not checked, will retry"`
	)
	results := []struct {
		err      error
		logged   string        // "" if nothing is logged
		enforced bool          // the metric
		after    time.Duration // since the last probe
	}{
		{fmt.Errorf("probe: %w", serverfence.ErrNotEnforced), notEnforced, false, minFenceProbes},
		{fmt.Errorf("probe: %w", serverfence.ErrNotEnforced), "", false, minFenceProbes},
		{fmt.Errorf("probe: %w", cannot("create", "configmaps")), forbidden, false, 2 * minFenceProbes},
		{errors.New("down"), notChecked, false, minFenceProbes},
		{nil, enforced, true, minFenceProbes},
		{nil, "", true, minFenceProbes},
		{nil, "", true, 2 * minFenceProbes},
		{nil, "", true, 4 * minFenceProbes},
		{nil, "", true, 8 * minFenceProbes},
		{fmt.Errorf("probe: %w", serverfence.ErrOutdated), "", true, maxFenceProbes},
		{nil, "", true, minFenceProbes},
		{fmt.Errorf("probe: %w", serverfence.ErrOutdated), "", true, 2 * minFenceProbes},
		{fmt.Errorf("probe: %w", serverfence.ErrOutdated), outdated, false, minFenceProbes},
		{fmt.Errorf("probe: %w", serverfence.ErrOutdated), "", false, minFenceProbes},
		{nil, enforced, true, 2 * minFenceProbes},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		logged, hasLeader, probes := "", false, 0
		p := &fenceProbe{
			log:       funcr.New(func(_, text string) { logged += text }, funcr.Options{}),
			hasLeader: func() bool { return hasLeader },
			probe: func(context.Context) error {
				probes++
				return results[probes-1].err
			},
		}
		ended := make(chan error)
		go func() { ended <- p.run(ctx) }()
		time.Sleep(minFenceProbes)
		synctest.Wait()
		if probes != 0 {
			t.Fatal("probed although no replica holds the Lease")
		}
		hasLeader = true
		for i, result := range results {
			logged = ""
			time.Sleep(result.after - time.Nanosecond)
			synctest.Wait()
			if probes != i {
				t.Fatalf("probe %d came too early", i)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if probes != i+1 {
				t.Fatalf("got %d probes, want %d", probes, i+1)
			}
			if !strings.HasPrefix(logged, result.logged) || result.logged == "" && logged != "" {
				t.Errorf("probe %d: logged %s, want %s", i, logged, result.logged)
			}
			if p.enforced.Load() != result.enforced {
				t.Errorf("probe %d: the metric is %t", i, p.enforced.Load())
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
