// Report writes the charts and tables of the documentation from saved output of the benchmarks. "make bench-report"
// runs it.
//
// The saved output is in test/bench/results, one file for each run. It is the unchanged output of "go test -bench", in
// the format of benchstat. Lines such as "kernel: ..." describe the machine and the versions of the run, and lines such
// as "note: ..." name measurements that were left out.
//
// A Markdown file contains a marker wherever a table belongs:
//
//	<!-- bench-report: growth growth types heap-B -->
//	(the table)
//	<!-- end of bench-report -->
//
// The words after the colon are the kind of the content and its arguments; see the variable blocks. The text up to the
// end marker is replaced. The charts are SVG files, which need no marker. The test fails if a file in the repository
// differs from the report of the saved output.
package main
