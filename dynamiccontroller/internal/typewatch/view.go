package typewatch

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// view shows an object as a depth would have kept it. Of what was kept with less depth it shows what there is.
func view(depth Depth, obj any) any {
	switch o := obj.(type) {
	case *unstructured.Unstructured:
		switch depth {
		case Full:
			return o
		case Metadata:
			return metadataOf(o)
		default:
			return stubOf(o.GetNamespace(), o.GetName())
		}
	case *metav1.PartialObjectMetadata:
		switch depth {
		case Full:
			return fullOf(o)
		case Metadata:
			return o
		default:
			return stubOf(o.Namespace, o.Name)
		}
	default:
		return obj
	}
}

func metadataOf(o *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		// As the API server answers a metadata client.
		TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name:                       o.GetName(),
			GenerateName:               o.GetGenerateName(),
			Namespace:                  o.GetNamespace(),
			UID:                        o.GetUID(),
			ResourceVersion:            o.GetResourceVersion(),
			Generation:                 o.GetGeneration(),
			CreationTimestamp:          o.GetCreationTimestamp(),
			DeletionTimestamp:          o.GetDeletionTimestamp(),
			DeletionGracePeriodSeconds: o.GetDeletionGracePeriodSeconds(),
			Labels:                     o.GetLabels(),
			Annotations:                o.GetAnnotations(),
			OwnerReferences:            o.GetOwnerReferences(),
			Finalizers:                 o.GetFinalizers(),
		},
	}
}

func fullOf(m *metav1.PartialObjectMetadata) *unstructured.Unstructured {
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&m.ObjectMeta)
	if err != nil {
		metadata = map[string]any{"namespace": m.Namespace, "name": m.Name}
	}
	return &unstructured.Unstructured{Object: map[string]any{"metadata": metadata}}
}

// stub stands for an object of which only the key is known.
func stub(key string) *metav1.PartialObjectMetadata {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	return stubOf(namespace, name)
}

func stubOf(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// reducer is what a depth leaves of an object.
func reducer(depth Depth) func(any) any {
	return func(obj any) any {
		m, ok := obj.(*metav1.PartialObjectMetadata)
		switch {
		case !ok || depth == Full:
			return obj
		case depth == Metadata:
			// They are most of what an object's metadata weighs.
			m.ManagedFields = nil
			return m
		default:
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			}}
		}
	}
}
