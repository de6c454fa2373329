package apicases

import (
	"slices"
	"strings"
)

// All returns the cases. Their order does not matter.
func All() []Case {
	return slices.Concat(nameCases, metadataCases, createCases, updateCases, patchCases, applyCases, mergeCases,
		statusCases, deleteCases, finalizerCases, generationCases, listCases, watchCases, dryRunCases, managerCases)
}

// long returns a string of n characters.
func long(n int) string { return strings.Repeat("a", n) }
