// The look of the documentation site: VitePress's own, without its web font, in Sandglass' colours.
import { useData } from "vitepress";
import theme from "vitepress/theme-without-fonts";
import { onMounted, watch } from "vue";
import "./style.css";

export default {
  ...theme,
  setup() {
    // VitePress marks the main part of every page but the front page, where screen readers need the mark as well.
    const { frontmatter } = useData();
    const mark = () => {
      const content = document.getElementById("VPContent");
      if (frontmatter.value.layout === "home") content?.setAttribute("role", "main");
      else content?.removeAttribute("role");
    };
    onMounted(mark);
    watch(frontmatter, mark, { flush: "post" });
  },
};
