package controllertest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// continueToken is the position of the next page of a list. All pages contain the state at one resourceVersion.
type continueToken struct {
	Version int64                `json:"rv"`
	After   types.NamespacedName `json:"after"` // the last object of this page
}

// listLocked performs a list request.
func (s *Server) listLocked(
	t *table, namespace string, opts metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	matches, err := matcher(namespace, opts)
	if err != nil {
		return nil, err
	}
	if err := checkListOptions(opts); err != nil {
		return nil, err
	}
	token, err := s.startOfListLocked(opts)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{}}
	list.SetGroupVersionKind(t.GVR.GroupVersion().WithKind(t.Kind + "List"))
	list.SetResourceVersion(strconv.FormatInt(token.Version, 10))
	found := t.listAt(token.Version, matches)
	for i, object := range found {
		if compareKeys(keyOf(object), token.After) <= 0 {
			continue
		}
		if opts.Limit > 0 && len(list.Items) == int(opts.Limit) {
			token.After = keyOf(found[i-1])
			data, err := json.Marshal(token)
			if err != nil {
				return nil, err
			}
			list.SetContinue(base64.RawURLEncoding.EncodeToString(data))
			if opts.LabelSelector == "" && opts.FieldSelector == "" {
				list.SetRemainingItemCount(ptr.To(int64(len(found) - i)))
			}
			break
		}
		list.Items = append(list.Items, *object.DeepCopy())
	}
	return list, nil
}

// startOfListLocked returns the position at which a list begins.
func (s *Server) startOfListLocked(opts metav1.ListOptions) (token continueToken, err error) {
	token.Version = s.version
	version, err := parseVersion(opts.ResourceVersion)
	switch {
	case err != nil:
		return token, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	case opts.Continue != "" && version != 0:
		return token, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	case opts.Continue != "":
		data, err := base64.RawURLEncoding.DecodeString(opts.Continue)
		if err == nil {
			err = json.Unmarshal(data, &token)
		}
		if err != nil {
			return token, apierrors.NewBadRequest("invalid continue token: " + err.Error())
		}
	case version > s.version:
		return token, tooLargeVersion(version, s.version)
	case opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact,
		opts.ResourceVersionMatch == "" && opts.Limit > 0 && version > 0:
		token.Version = version
	}
	return token, nil
}

// tooLargeVersion returns the error of an API server for a resourceVersion that does not exist yet.
func tooLargeVersion(wanted, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", wanted, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

func parseVersion(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	parsed, err := strconv.ParseUint(version, 10, 63)
	return int64(parsed), err
}

// checkListOptions returns an error if the options of a list or watch contradict each other.
func checkListOptions(opts metav1.ListOptions) error {
	return checkOptions("ListOptions", validation.ValidateListOptions(&internalversion.ListOptions{
		Watch: opts.Watch, ResourceVersion: opts.ResourceVersion, ResourceVersionMatch: opts.ResourceVersionMatch,
		Limit: opts.Limit, Continue: opts.Continue, SendInitialEvents: opts.SendInitialEvents,
	}, true))
}

// matcher returns a function that reports whether an object belongs to a list or watch.
func matcher(namespace string, opts metav1.ListOptions) (func(*unstructured.Unstructured) bool, error) {
	selector, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	fieldSelector, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range fieldSelector.Requirements() {
		if requirement.Field != "metadata.name" && requirement.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return func(object *unstructured.Unstructured) bool {
		return (namespace == "" || object.GetNamespace() == namespace) &&
			selector.Matches(labels.Set(object.GetLabels())) && fieldSelector.Matches(fields.Set{
			"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace(),
		})
	}, nil
}
