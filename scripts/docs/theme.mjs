// The look of the documentation site: VitePress's own, without its web font, in Sandglass' colours.
import theme from "vitepress/theme-without-fonts";
import "./style.css";

export default theme;
