package restmapper

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// labelAutomanaged is the label of the APIServices that the API server itself creates. The value is "onstart" for
// built-in groups and "true" for versions of CRDs. The mapper does not need APIServices with the value "true", because
// CRDs contain the same information.
const (
	labelAutomanaged      = "kube-aggregator.kubernetes.io/automanaged"
	automanagedOnStart    = "onstart"
	selectNotAutomanaged  = labelAutomanaged + "!=true"
	conditionAvailability = "Available"
)

// apiService contains the fields of an APIService that the mapper needs.
type apiService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              apiServiceSpec   `json:"spec"`
	Status            apiServiceStatus `json:"status"`
}

type apiServiceSpec struct {
	Group                string            `json:"group"`
	Version              string            `json:"version"`
	GroupPriorityMinimum int               `json:"groupPriorityMinimum"`
	VersionPriority      int               `json:"versionPriority"`
	Service              *serviceReference `json:"service"`
}

type apiServiceStatus struct {
	Conditions []apiServiceCondition `json:"conditions"`
}

type serviceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type apiServiceCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

func (s *apiService) DeepCopyObject() runtime.Object {
	out := *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	if s.Spec.Service != nil {
		reference := *s.Spec.Service
		out.Spec.Service = &reference
	}
	out.Status.Conditions = append([]apiServiceCondition(nil), s.Status.Conditions...)
	return &out
}

// reduceService removes the fields of an APIService that the mapper does not need. The result does not depend on
// whether the APIService was received in a list or in a watch.
func reduceService(object any) (any, error) {
	s, ok := object.(*apiService)
	if !ok {
		return nil, unexpectedType(object)
	}
	s.TypeMeta, s.ObjectMeta = metav1.TypeMeta{}, reduceMeta(s.ObjectMeta, labelAutomanaged)
	return s, nil
}

func (s *apiService) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// service returns the APIService in the form in which the catalog stores it. If the API server itself serves the
// version, discovery ignores the priorities in its APIService, so service returns nil. Built-in groups are an
// exception.
func (s *apiService) service() *service {
	if s.Spec.Service == nil && s.Labels[labelAutomanaged] != automanagedOnStart {
		return nil
	}
	out := &service{groupPriority: s.Spec.GroupPriorityMinimum, versionPriority: s.Spec.VersionPriority}
	if s.Spec.Service != nil {
		out.remote = true
		out.condition = s.Spec.Service.Namespace + "/" + s.Spec.Service.Name
	}
	for _, c := range s.Status.Conditions {
		if c.Type == conditionAvailability {
			out.condition += " " + c.Status
		}
	}
	return out
}

// serviceVersion returns the group and version of the APIService with this name. The format of the name is
// version.group.
func serviceVersion(name string) schema.GroupVersion {
	version, group, _ := strings.Cut(name, ".")
	return schema.GroupVersion{Group: group, Version: version}
}
